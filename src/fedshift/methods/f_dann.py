"""f-DANN: a domain adversary against an unlabelled target (as in Sun et al., ACML 2022, Table 1).

DANN is of Ganin and Lempitsky, ICML 2015. The part is FedKA's.
"""

from __future__ import annotations

from fedshift import Method, register
from fedshift.methods.fedka.method import GlobalDisentangler


@register("f-dann", paper="Ganin & Lempitsky, ICML 2015; as in FedKA", group="alignment")
def f_dann() -> Method:
    """Features that a domain classifier cannot tell from the target's.

    A shared classifier f_d learns to tell a client's features from those of an unlabelled target at
    the server. Through a gradient reversal the client's encoder learns that it cannot.

    Use it: as the adversarial half of FedKA, to see what it gains alone on a known target.
    Not for: federations without inputs of the target, or very few rounds.
    Equations: FedKA, Eqs. 2 to 4: `GlobalDisentangler.loss`; the reversal: `reverse`.
    """
    return Method((GlobalDisentangler(),))
