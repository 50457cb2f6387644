"""FedBN: BatchNorm layers stay at the client (Li et al., ICLR 2021)."""

from __future__ import annotations

from collections.abc import Mapping

from fedshift import (
    Method,
    Net,
    Part,
    Samples,
    Scope,
    Scoring,
    batch_norm_keys,
    estimate_statistics,
    register,
)


class PrivateBatchNorm(Part):
    """Weight, bias and statistics of every BatchNorm are private, by module type.

    Implementations that search the keys for ``bn`` miss layers such as ``downsample.1``.
    """

    def scope(self, net: Net) -> Mapping[str, Scope]:
        """All five entries of each layer."""
        return dict.fromkeys(batch_norm_keys(net), Scope.PRIVATE)

    def adapt(self, net: Net, unlabelled: Samples, scoring: Scoring) -> None:
        """At a new site, estimate the statistics anew on its unlabelled inputs."""
        estimate_statistics(net, unlabelled.chunks(64))


@register("fedbn", paper="Li et al., ICLR 2021", group="personal")
def fedbn() -> Method:
    """Everything but BatchNorm is averaged; each client keeps its own normalisation."""
    return Method((PrivateBatchNorm(),))
