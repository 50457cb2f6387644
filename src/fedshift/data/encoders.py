"""Frozen encoders of images: a data set's images are encoded once, and their features are stored.

A scenario asks for it by the data option ``encoder``: then sites, methods and transports see
vectors, and a federated head trains in seconds. ``data.library.loaded`` and deployed sites call
:func:`encoded`. Encoders are registered by the backbones; nothing random may act on the images, so
augmentation is refused where a run is prepared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedshift.base.errors import DataError
from fedshift.base.logs import log
from fedshift.base.registry import Registry
from fedshift.data.samples import Domain
from fedshift.data.store import checksum, combined, read_domain, write_domain

BLOCK = 32  # images that are encoded together


@dataclass(frozen=True)
class ImageEncoder:
    """A frozen net without its head."""

    fingerprint: str  # of its weights and of how it scales pixels
    features: Callable[[Tensor], Tensor]  # stored images (N, H, W, C) to vectors (N, D)


ENCODERS: Registry[ImageEncoder] = Registry("encoder", "fedshift.backbones", "fedshift.encoders")
register_encoder = ENCODERS.register


def encoded(domain: Domain, name: str, folder: Path) -> Domain:
    """The domain with vectors in place of its images; each image is encoded once and kept.

    They are kept in ``folder`` under a hash of the domain's content and the encoder's fingerprint,
    and the checksum of the result is made of the same two. So a run's identity does not depend on
    whether the features were there, nor on a processor's rounding.
    """
    if domain.x.dim() != 4:
        raise DataError(
            f"domain {domain.name!r} has vectors of shape {domain.shape}, and the encoder {name} "
            "takes images; leave the data option encoder out"
        )
    encoder = ENCODERS.get(name).build()
    mark = combined({"images": checksum(domain), "encoder": encoder.fingerprint})
    store = folder / hashlib.blake2b(mark.encode(), digest_size=12).hexdigest()
    try:
        kept = read_domain(store)
    except (OSError, ValueError, KeyError, DataError):  # absent, or damaged
        log.info("encoding the %d images of %s with %s, once", len(domain.x), domain.name, name)
        vectors = torch.cat([encoder.features(images) for images in domain.x.split(BLOCK)])
        kept = replace(domain, x=vectors)
        write_domain(store, kept)
    return replace(domain, x=kept.x, checksum=mark)
