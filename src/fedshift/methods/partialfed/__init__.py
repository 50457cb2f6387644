"""PartialFed: clients that load only some layers of the shared model (Sun et al., NeurIPS 2021)."""
