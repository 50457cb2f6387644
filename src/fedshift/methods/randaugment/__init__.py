"""RandAugment: a few random operations of one strength per image (Cubuk et al., 2020)."""
