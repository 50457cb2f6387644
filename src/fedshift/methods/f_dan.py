"""f-DAN: features matched to an unlabelled target by MK-MMD (as in Sun et al., ACML 2022, Table 1).

DAN is of Long et al., ICML 2015. The part is FedKA's.
"""

from __future__ import annotations

from fedshift import Method, register
from fedshift.methods.fedka.method import EmbeddingMatching


@register("f-dan", paper="Long et al., ICML 2015; as in FedKA", group="alignment")
def f_dan() -> Method:
    """Features matched to an unlabelled target's by MK-MMD.

    The server sends features of target inputs, and each client adds the discrepancy between its own
    features and those, measured by five Gaussian kernels. The weight grows over the run.

    Use it: as the kernel half of FedKA, to see what it gains alone on a known target.
    Not for: batches of a few samples (raise matched), or federations without inputs of the target.
    Equations: FedKA, Eqs. 5 to 8: `EmbeddingMatching.loss`; the discrepancy: `mk_mmd`.
    """
    return Method((EmbeddingMatching(),))
