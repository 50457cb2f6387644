"""Ground floor: errors, randomness, tensors by name, files, the process. Knows nothing of learning.

``seeds`` and ``tree`` are used as modules everywhere; they are imported when first used, because
torch comes with them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["seeds", "tree"])
