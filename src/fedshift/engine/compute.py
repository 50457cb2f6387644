"""How a process computes: device, memory layout of convolutional nets, compilation.

A run decides once (``experiment.session``) and writes the choice into its ``config.json``, so that
a resumed run and all its workers compute in the same way. These choices may change the last bits of
a result through the order of floating-point sums; they must never change what is computed, and
nothing here may depend on the method.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import ConfigDict

from fedshift.base import seeds
from fedshift.base.errors import ConfigError
from fedshift.base.files import home, write_json
from fedshift.core.net import Net

LAYOUTS = ("auto", "channels-last", "contiguous")
TRIALS = 4  # timed steps of each layout
MARGIN = 1.15  # how many times faster contiguous memory must be to be preferred
MATTERS = 0.003  # seconds; a shorter step is mostly overhead, and its timing mostly noise


@dataclass(frozen=True)
class Compute:
    """Device, layout and compilation of a run; ``auto`` is resolved once, when a run is prepared.

    The layout is not ``auto`` by default: a timing-based choice would make results irreproducible,
    because timings differ between machines and between two runs on the same machine.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")  # in run files
    device: str = "cpu"  # cpu, cuda, cuda:1, mps, or auto
    layout: str = "channels-last"  # one of LAYOUTS
    compile: bool = False  # torch.compile the net, once per process for all its sites

    def decided(self, net: Net, batch_size: int) -> Compute:
        """A copy with every ``auto`` resolved; raises if device or C++ compiler are missing."""
        if self.layout not in LAYOUTS:
            raise ConfigError(f"layout is {self.layout!r}; it takes {', '.join(LAYOUTS)}")
        if self.compile and shutil.which("g++") is None and shutil.which("clang++") is None:
            raise ConfigError("torch.compile needs a C++ compiler, and none is installed (g++)")
        device = find_device(self.device)
        layout = self.layout
        if layout == "auto":
            layout = faster_layout(net, batch_size) if device == "cpu" else "channels-last"
        return replace(self, device=device, layout=layout)

    def changed(self, **values: Any) -> Compute:
        """A copy with other values; a value of None is ignored."""
        return replace(self, **{k: v for k, v in values.items() if v is not None})

    def move(self, net: Net) -> Net:
        """Move ``net`` to the device and into the memory layout, in place."""
        net.to(self.device)
        return in_layout(net, self.layout)

    def describe(self) -> dict[str, str | bool]:
        """The fields as JSON values, for ``config.json``."""
        return asdict(self)


def find_device(name: str) -> str:
    """The device if this machine has it; ``auto`` prefers cuda, then mps, then cpu."""
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if name == "auto":
        return next(device for device in ("cuda", "mps", "cpu") if there[device])
    if not there.get(name.partition(":")[0], False):
        found = ", ".join(device for device, is_there in there.items() if is_there)
        raise ConfigError(f"there is no device {name!r} on this machine; it has {found}")
    return name


def in_layout(net: Net, layout: str) -> Net:
    """Store the convolution weights of ``net`` in the given memory layout, in place.

    Inputs and activations follow the layout of the weights.
    """
    net.contiguous = layout == "contiguous"  # convert inputs: images are stored channels-last
    kind = torch.contiguous_format if net.contiguous else torch.channels_last
    for parameter in net.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=kind)
    return net


_found: dict[tuple[Path, str], str] = {}  # layouts this process has chosen, by cache file and key


def faster_layout(net: Net, batch_size: int) -> str:
    """The layout in which a training step of ``net`` is faster on this machine.

    Measured once per net, batch size, torch version and number of threads, then read from
    ``layouts.json`` in the user's cache; a process keeps its first choice even if the file changes.
    Channels-last is 1.3 to 1.5 times faster for most small nets on one thread, and is preferred
    unless contiguous memory is clearly faster: measurement noise must not decide.
    """
    if all(p.dim() != 4 for p in net.parameters()):
        return "contiguous"
    text = f"{net} {net.shape} {batch_size} {torch.__version__} {torch.get_num_threads()}"
    key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    path = home() / "layouts.json"
    if (path, key) not in _found:
        known: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(path.read_text())
        if known.get(key) not in LAYOUTS[1:]:
            known[key] = preferred(try_layouts(net, batch_size))
            with contextlib.suppress(OSError):  # without a writable cache it is measured again
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, known)
        _found[path, key] = known[key]
    return _found[path, key]


def preferred(seconds: dict[str, float]) -> str:
    """The layout to use given the seconds of each: contiguous only if it is clearly faster.

    Examples:
        >>> preferred({"channels-last": 1.05, "contiguous": 1.0})
        'channels-last'
        >>> preferred({"channels-last": 1.2, "contiguous": 1.0})
        'contiguous'
        >>> preferred({"channels-last": 0.0012, "contiguous": 0.001})
        'channels-last'
    """
    here = seconds["channels-last"]
    clearly = here > MATTERS and here > MARGIN * seconds["contiguous"]
    return "contiguous" if clearly else "channels-last"


def try_layouts(net: Net, batch_size: int) -> dict[str, float]:
    """Shortest time of a forward and backward pass in each layout; ``net`` is left unchanged.

    The layouts alternate, so that a disturbance by other processes affects both.
    """
    kept = {k: v.clone() for k, v in net.state_dict().items()}
    was_training = net.training
    x = torch.zeros(batch_size, *net.shape).contiguous(memory_format=torch.channels_last)
    y = torch.zeros(batch_size, dtype=torch.int64)
    seconds: dict[str, list[float]] = {"channels-last": [], "contiguous": []}
    net.train()
    with seeds.fork("layout"):  # dropout draws random numbers
        for _ in range(TRIALS + 1):
            for layout, taken in seconds.items():
                in_layout(net, layout)
                net.zero_grad(set_to_none=True)
                taken.append(timed(lambda: F.cross_entropy(net(x).logits, y).backward()))
    net.zero_grad(set_to_none=True)
    net.train(was_training)
    net.load_state_dict(kept)
    return {layout: min(taken[1:]) for layout, taken in seconds.items()}  # the first warms up


def timed(play: Callable[[], object]) -> float:
    """CPU seconds that calling ``play`` takes; other processes do not count."""
    began = time.process_time()
    play()
    return time.process_time() - began
