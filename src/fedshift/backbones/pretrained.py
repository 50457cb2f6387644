"""Weights from a local file: torchvision's checkpoints and safetensors of the timm hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError  # noqa: TID251  only the error's type: what torch.load raises

import safetensors.torch
import torch
from torch import Tensor

from fedshift import ConfigError, Net, Tree, head_keys
from fedshift.base.tree import pick
from fedshift.core.net import load

REMEDY = (
    "use a file of the same backbone, with width=1, the norm and stem of the file "
    "and images of 3 channels, or leave pretrained out"
)


def load_pretrained(
    net: Net, path: str | Path, *, fresh: Sequence[str] = (), unused: Sequence[str] = ()
) -> Net:
    """Copy a file's weights into ``net`` in place, except a head of another shape.

    ``fresh`` are modules of the net that the file may lack, ``unused`` modules of the file that the
    net may lack. Any other difference is an error, so that no layer stays random unnoticed.
    """
    path = Path(path).expanduser()
    found = read_weights(path)
    own = net.state_dict()
    kept = {k: v for k, v in found.items() if k in own or not _below(k, unused)}
    return copy_weights(net, path, kept, fresh=fresh)


def copy_weights(net: Net, path: Path, found: Tree, *, fresh: Sequence[str] = ()) -> Net:
    """As :func:`load_pretrained`, with what ``path`` holds, under the net's names, in ``found``."""
    own = {k: v for k, v in net.state_dict().items() if k in found or not _below(k, fresh)}
    head = head_keys(net)
    if any(k not in found or found[k].shape != own[k].shape for k in head):
        own = {k: v for k, v in own.items() if k not in head}
        found = {k: v for k, v in found.items() if k not in head}
    _check(path, own, found)
    load(net, pick(found, own))
    return net


def read_weights(path: Path) -> Tree:
    """Tensors by name from a ``.pth``, ``.pt`` or ``.safetensors`` file; code is never run."""
    if path.suffix not in (".pth", ".pt", ".safetensors"):
        raise ConfigError(f"pretrained is {path}; it takes a .pth, .pt or .safetensors file")
    if not path.is_file():
        raise ConfigError(
            f"pretrained weights {path} do not exist; nothing is downloaded, "
            "so put the file of torchvision or timm there or mend the path"
        )
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        found = torch.load(  # noqa: TID251  torchvision's format; weights_only runs no code
            path, map_location="cpu", weights_only=True
        )
    except UnpicklingError:
        raise ConfigError(
            f"{path} is refused: it is damaged or holds Python objects besides tensors, which "
            "could run code; save model.state_dict() alone, or as .safetensors"
        ) from None
    except Exception as error:  # a damaged pickle fails in any way: index, key, struct, unicode ...
        reason = f"{type(error).__name__} {error}".partition("\n")[0]
        raise ConfigError(
            f"{path} cannot be read as weights ({reason}); mend it or download it again"
        ) from None
    if not isinstance(found, dict) or not all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in found.items()
    ):
        raise ConfigError(
            f"{path} is not a state dict of tensors by name; save model.state_dict() alone"
        )
    return found


def _below(key: str, modules: Sequence[str]) -> bool:
    return any(key.startswith(f"{name}.") for name in modules)


def _check(path: Path, own: Tree, found: Tree) -> None:
    """Raise at the first key that only the net or only the file has, or whose shapes differ."""
    for key, value in own.items():
        if key not in found:
            if key.endswith("num_batches_tracked"):  # older files have no counters
                continue
            shape = tuple(value.shape)
            raise ConfigError(f"{path} lacks {key}, which is {shape} in this net; {REMEDY}")
        if found[key].shape != value.shape:
            raise ConfigError(
                f"{path} has {key} of shape {tuple(found[key].shape)}, "
                f"but it is {tuple(value.shape)} in this net; {REMEDY}"
            )
    for key, value in found.items():
        if key not in own:
            shape = tuple(value.shape)
            raise ConfigError(f"{path} has {key} of shape {shape}, which this net lacks; {REMEDY}")
