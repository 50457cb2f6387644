"""Class means of features: what prototype methods send, how it is declared, and how it is pooled.

FPL, FedProto, FedTGP and FedSA send the mean feature of each class that a client holds. Labels are
given as ``shares`` (B, K), the proportion of each class in each sample: one-hot, or soft if a part
such as mixup has mixed samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedshift import Client, ModelSpec, PayloadSpec, Size, Tree, call_frozen


def shares_of(y: Tensor, classes: int) -> Tensor:
    """Proportion (B, K) of each class in each target: one-hot of indices, soft labels unchanged."""
    return y if y.dim() == 2 else F.one_hot(y, classes).float()


def class_means(z: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """A client's prototypes: mean feature (M, D) of each class it holds, and those classes (M,).

    From features ``z`` (B, D) and the share of each class in each sample, ``shares`` (B, K).
    """
    counts = shares.sum(0)  # (K,)
    held = counts.nonzero().flatten()  # (M,)
    return (shares.T @ z)[held] / counts[held, None], held


def features_of(client: Client) -> tuple[Tensor, Tensor]:
    """Features (n, D) of the client's net on all its training samples, and their shares (n, K).

    In eval mode and without gradient; asked for in ``finish``, they are those of the trained net.
    """
    entries = client.net.state_dict()
    rows = [
        (call_frozen(client.net, entries, x).features, shares_of(y, client.classes))
        for x, y in client.site.data.train.chunks()
    ]
    z, shares = zip(*rows, strict=True)
    return torch.cat(z), torch.cat(shares)


def means_spec(model: ModelSpec, *, counts: bool = False) -> dict[str, PayloadSpec]:
    """Means (M, D) and classes (M,) of the M classes that a client holds; and sample counts (M,).

    For a part's ``uploads``: ``{"train": means_spec(model)}``.
    """
    held, last = Size("M", most=model.classes), model.classes - 1
    spec = {
        "means": PayloadSpec((held, model.features)),
        "owners": PayloadSpec((held,), torch.int64, low=0, high=last),
    }
    return spec | ({"counts": PayloadSpec((held,), low=1, whole=True)} if counts else {})


def means_payload(client: Client, *, counts: bool = False) -> Tree:
    """What :func:`means_spec` declares, of the net as it is: for a part's ``finish``."""
    z, shares = features_of(client)
    means, owners = class_means(z, shares)
    told = {"means": means, "owners": owners}
    return told | ({"counts": shares.sum(0)[owners]} if counts else {})


def pool_means(told: Sequence[Tree], classes: int, *, by_count: bool) -> tuple[Tensor, Tensor]:
    """One mean (K, D) per class over the clients that hold it, and which classes are known (K,).

    ``told`` has one payload per client, as :func:`means_payload` makes it. ``by_count`` weighs a
    client's mean by its samples of the class, which gives the mean over all samples; otherwise
    every client counts the same. An unknown class has a row of zeros.
    """
    means, owners = (torch.cat([t[key] for t in told]) for key in ("means", "owners"))
    weights = torch.cat([t["counts"] for t in told]) if by_count else torch.ones(len(means))
    total = torch.zeros(classes).index_add(0, owners, weights)  # (K,)
    sums = means.new_zeros(classes, means.shape[1]).index_add(0, owners, weights[:, None] * means)
    known = total > 0
    return sums / torch.where(known, total, 1.0)[:, None], known
