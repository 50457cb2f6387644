"""FDSE (Wang et al., CVPR 2025): each layer becomes extractor and eraser; consensus aggregation."""
