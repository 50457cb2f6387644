"""BatchNorm statistics of a new site: adaptation without labels, for any method (Li et al., 2016).

``fedavg + adapt-bn`` is the control for every method that adapts to an unseen domain: it shows what
the new site's statistics alone gain.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedshift import (
    ConfigError,
    Method,
    Net,
    Part,
    Samples,
    Scoring,
    estimate_statistics,
    register,
    setting,
)
from fedshift.core.net import batch_norm_buffers


@dataclass(frozen=True)
class AdaptBn(Part):
    """At a new site, all BatchNorm statistics are estimated anew on its unlabelled inputs.

    Nothing else changes: only the protocol ``unseen-adapted`` has other scores.
    """

    adapt_batch: int = setting(64, "inputs per batch whose statistics are averaged", low=2)

    def build(self, net: Net) -> None:
        """Raise if there are no statistics to adapt."""
        if not batch_norm_buffers(net):
            raise ConfigError(
                f"{self.name} estimates BatchNorm statistics, and this backbone has none; give one "
                "with BatchNorm, or leave it out"
            )

    def adapt(self, net: Net, unlabelled: Samples, scoring: Scoring) -> None:
        """Plain averages over the batches; without inputs nothing changes."""
        if len(unlabelled):
            estimate_statistics(net, unlabelled.chunks(self.adapt_batch))


@register("adapt-bn", paper="Li et al., 2016", group="adaptation")
def adapt_bn() -> Method:
    """FedAvg, with a new site's own BatchNorm statistics.

    The statistics of the sites that trained do not fit another look of the data; a new site's own
    inputs, without labels, give better ones. Add it to any method: `fedprox + adapt-bn`.

    Use it: as the control of every method that adapts to a new site.
    Not for: backbones without BatchNorm, or sites with a few inputs only.
    Equations: statistics: `AdaptBn.adapt`.
    """
    return Method((AdaptBn(),))
