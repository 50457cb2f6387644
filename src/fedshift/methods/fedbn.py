"""FedBN: BatchNorm layers stay at home (Li et al., ICLR 2021)."""

from __future__ import annotations

from collections.abc import Mapping

from fedshift import (
    Method,
    Net,
    Part,
    Samples,
    Scope,
    batch_norm_keys,
    estimate_statistics,
    register,
)


class PrivateBatchNorm(Part):
    """Weight, bias and statistics of every BatchNorm are private, by module type.

    Codes that search the keys for a substring miss layers such as ``downsample.1``.
    """

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """All five entries of each layer."""
        return dict.fromkeys(batch_norm_keys(net), Scope.PRIVATE)

    def adapt(self, net: Net, unlabelled: Samples) -> None:
        """At a new site: statistics re-estimated on its inputs."""
        estimate_statistics(net, unlabelled.chunks(64))


@register("fedbn", paper="Li et al., ICLR 2021")
def fedbn() -> Method:
    """Everything but BatchNorm is averaged; each site keeps its own normalisation."""
    return Method((PrivateBatchNorm(),))
