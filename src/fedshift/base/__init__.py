"""Helpers below everything else: errors, seeds, trees of tensors, files, process settings.

Every other package imports from here, and nothing here may import from them or know about
learning. ``seeds`` and ``tree`` are used as modules throughout the project. They are imported when
first used, because they import torch, which would make ``fedshift --help`` slow.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["seeds", "tree"])
