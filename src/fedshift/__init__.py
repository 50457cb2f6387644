"""Federated learning under domain shift: published methods as small composable parts.

``from fedshift import Part, Method, ...`` is all that the author of a method imports, and
``fedshift.run``, ``compare`` and ``load`` all that a user calls. The names are listed, with their
modules, in ``__init__.pyi``; each is imported when it is first used, so that ``import fedshift``
and ``fedshift --help`` do not wait for torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
