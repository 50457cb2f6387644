"""StableFDG from its three parts."""

from __future__ import annotations

from fedshift import (
    Method,
    register,
)
from fedshift.methods.stablefdg.exploration import StyleExploration
from fedshift.methods.stablefdg.highlighter import FeatureHighlighter
from fedshift.methods.stablefdg.sharing import StyleSharing


@register("stablefdg", paper="Park et al., NeurIPS 2023", group="augmentation")
def stablefdg() -> Method:
    """Styles of another client and beyond, and attention to the class.

    Each round a client lends its style to another one, which shifts half of a batch to it. Rare
    classes are repeated in styles that nobody has, and attention highlights what a class shares.

    Use it: for an unseen domain with few samples and few looks per client.
    Not for: nets without feature maps, and batches in which most classes occur once.
    Equations: Eqs. 1, 2: `style_of`; 3: `shift_styles`; 4: `explore_styles`; 5: `Highlighter`.
    """
    return Method((StyleSharing(), StyleExploration(), FeatureHighlighter()))
