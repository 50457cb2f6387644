"""Differential privacy and secure aggregation, to be added to other methods: docs/privacy.md."""

from __future__ import annotations

from fedshift import Method, register
from fedshift.privacy.dp import CentralDP, LocalDP
from fedshift.privacy.secure import SecureAggregation


@register("central-dp", paper="McMahan et al., ICLR 2018", group="privacy")
def central_dp() -> Method:
    """The published model hides every site; a trusted server.

    Updates are clipped, averaged and given Gaussian noise at the server, and an accountant says
    which epsilon has been spent. The unit that is hidden is a whole site.

    Use it: participants trust the server but not those who get the model, and there are many of
    them.
    Not for: fewer than some dozens of sites: the noise is then larger than what they teach.
    Equations: Algorithm 1: `CentralDP.decode_all`; epsilon: `CentralDP.privacy_spent`.
    """
    return Method((CentralDP(),))


@register(
    "local-dp", paper="McMahan et al., ICLR 2018, with the noise at the sites", group="privacy"
)
def local_dp() -> Method:
    """Sites add noise before anything leaves; nobody is trusted.

    Each site clips its update and adds Gaussian noise itself, so that not even the server sees a
    plain one.

    Use it: the server itself is not trusted and there are hundreds of sites.
    Not for: few sites: the noise of each is as large as that of all together under central-dp.
    Equations: clipped step plus noise: `LocalDP.encode`; epsilon: `LocalDP.privacy_spent`.
    """
    return Method((LocalDP(),))


@register("secure-aggregation", paper="Bonawitz et al., CCS 2017", group="privacy")
def secure_aggregation() -> Method:
    """The server learns the sum of the updates and no single one.

    Sites mask their updates with numbers that cancel in the sum, agreed on by keys that the server
    only passes on; those of sites that drop out are recovered from shares.

    Use it: single updates must not be seen and the plain mean is what the method needs.
    Not for: methods that read single updates (robust rules, fdse, fedheal, voting), which it
    refuses; it does not limit what the sum tells.
    Equations: masked input: `SecureAggregation.encode`; unmasking: `SecureAggregation.decode_all`.
    """
    return Method((SecureAggregation(),))
