"""CCST on pixels or on features."""

from __future__ import annotations

from fedshift import (
    ConfigError,
    Method,
    register,
)
from fedshift.methods.ccst.feature_styles import FeatureStyles
from fedshift.methods.ccst.pixel_styles import PixelStyles


@register("ccst", paper="Chen et al., WACV 2023", group="augmentation")
def ccst(styles: str = "pixels") -> Method:
    """Images in the styles of other clients.

    Each client publishes the mean and deviation of its channels, and trains on its own images in
    the styles of all clients. So every local model sees every look, and none is shown an image.

    Use it: for an unseen domain, or for one model on looks that differ in colour and contrast.
    Not for: looks that two numbers per channel do not tell apart, such as outlines and fills.
    Equations: Eq. 1: `restyled`; Eqs. 2, 3: `overall_style`; Algorithm 1: `PixelStyles.draw`.
    Options: styles: of what the statistics are, pixels or features (first feature maps).
    """
    kinds = {"pixels": PixelStyles, "features": FeatureStyles}
    if styles not in kinds:
        raise ConfigError(f"ccst.styles is {styles!r}; it takes pixels or features")
    return Method((kinds[styles](),))
