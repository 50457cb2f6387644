"""FedDG-GA: weights that even out the generalisation gaps (Zhang et al., CVPR 2023)."""
