"""The dataset ``digits``, which needs no download: rendered once per machine, then cached.

The default scenario and the documentation's examples use it. The rendering has a fixed seed and
must never depend on the run's seed: all runs share the same images.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping

import torch

from fedshift.base.errors import DataError
from fedshift.base.files import home
from fedshift.base.logs import warn_once
from fedshift.data.library import digits
from fedshift.data.registry import register_dataset
from fedshift.data.samples import Domain
from fedshift.data.store import read_domain, write_domain

SEED = 0  # of the rendering; the run's seed only decides which client holds which images


@register_dataset("digits")
def embedded_digits() -> Mapping[str, Domain]:
    """Five looks of digits, 599 images of 32x32x3 each: scan, photo, print, meter, outline."""
    folder = home() / "digits" / variant()
    try:
        return {name: read_domain(folder / name) for name in digits.DOMAINS}
    except (OSError, ValueError, KeyError, DataError):
        domains = render()
    try:
        for name, domain in domains.items():
            write_domain(folder / name, domain)
    except OSError as error:
        warn_once(f"digits are not cached: {error}; set FEDSHIFT_HOME")
    return domains


def variant() -> str:
    """Name of the cache entry: a hash of the rendering's source, so that a change renders anew."""
    source = inspect.getsource(digits).encode()
    return f"{SEED}-{hashlib.sha256(source).hexdigest()[:12]}"


def render() -> dict[str, Domain]:
    """Render the domains."""
    classes = tuple(str(digit) for digit in range(10))
    return {
        name: Domain(
            name, torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(split), classes
        )
        for name, (x, y, split) in digits.render(SEED).items()
    }
