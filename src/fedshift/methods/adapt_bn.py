"""BatchNorm statistics of a new site: adaptation without labels, for any method (Li et al., 2016).

``fedavg + adapt-bn`` is the control for every method that adapts to an unseen domain: it shows what
the new site's statistics alone gain.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedshift import ConfigError, Net, Part, Samples, Scoring, estimate_statistics, setting
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
        """Plain averages over the batches."""
        estimate_statistics(net, unlabelled.chunks(self.adapt_batch))
