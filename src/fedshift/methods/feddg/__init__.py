"""FedDG: an amplitude bank of all clients and episodic learning (Liu et al., CVPR 2021)."""
