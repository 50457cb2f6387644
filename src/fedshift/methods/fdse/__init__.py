"""FDSE (Wang et al., CVPR 2025): layers in two halves, aggregated by consensus."""
