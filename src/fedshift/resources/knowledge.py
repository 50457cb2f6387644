"""Knowledge that is no data set: splits, domains, weights, and algebra that is waived."""

from __future__ import annotations

from fedshift.core.resource import Resource, register_resource


@register_resource("client_val")
class ClientValidation(Resource):
    """The validation samples of each client, which parts may use in training."""

    doc = "a validation split at each client"


@register_resource("domain_ids")
class DomainIds(Resource):
    """The domain of each client, which it reports when it enrols."""

    doc = "which domain each client belongs to, known to the server"


@register_resource("sample_domains")
class SampleDomains(Resource):
    """The domain of each training sample, in ``batch.domains``, for clients that hold several.

    It never leaves the client: a hospital knows which scanner took an image, a shop which country
    an order came from. A site that does not know counts as one domain. Parts that mix samples leave
    each with the domain of the first.
    """

    doc = "which domain each training sample of a client belongs to, known to the client"


@register_resource("pretrained")
class Pretrained(Resource):
    """Weights that were trained elsewhere."""

    doc = "pretrained weights"


@register_resource("generator")
class Generator(Resource):
    """A generator of inputs, trained elsewhere or random."""

    doc = "a pretrained or random generator"


@register_resource("any_optimiser")
class AnyOptimiser(Resource):
    """Leave to try a method with an optimiser for which its derivation does not hold."""

    doc = "optimisers for which the method's algebra does not hold"
