"""DeepAll: one model on the union of all sites' data, without federation (as in CSAC)."""

from __future__ import annotations

from fedshift import ConfigError, Method, ModelSpec, Part, register


class PooledSites(Part):
    """min over w of sum_k sum_i loss(w; x_ki, y_ki): the training data of all sites in one place.

    The federation has one site, "pooled", and each round is the local budget on the union in random
    order. For simulations only; the one model is scored under every protocol, also ``personal``.
    """

    pools_sites = True
    shares = "all training samples, which a simulation holds in one place"

    def check(self, model: ModelSpec) -> None:
        """Refuse statistics that stay at a site: there is none but the pooled one."""
        if model.scenario.bn == "local":
            raise ConfigError(
                f"{self.name} has one model, and bn=local keeps BatchNorm statistics out of it; "
                "set bn=average"
            )


@register("deepall", paper="as in CSAC, Yuan et al., 2023", group="reference")
def deepall() -> Method:
    """No federation: one model on the union of all sites' training data.

    The reference from above: what the same backbone and budget reach if data could be pooled.

    Use it: to see what federation costs, beside `local`, which shows what it gains.
    Not for: real sites: it is refused in deployments, since data would leave them.
    Equations: empirical risk: `PooledSites`.
    """
    return Method((PooledSites(),))
