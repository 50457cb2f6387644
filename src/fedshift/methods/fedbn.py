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
    """Everything but BatchNorm is averaged; each site keeps its own.

    Weights, biases and statistics of all BatchNorm layers stay at the client, so that every site
    normalises its own look away. At a new site the statistics are estimated on its unlabelled
    inputs.

    Use it: sites differ in how their inputs look (scanner, camera, pen) and the backbone has
    BatchNorm: the first method to try.
    Not for: backbones without BatchNorm, where it is FedAvg, or one model file for everybody: there
    is none.
    Equations: Algorithm 1: `PrivateBatchNorm.scope`; new site: `PrivateBatchNorm.adapt`.
    """
    return Method((PrivateBatchNorm(),))
