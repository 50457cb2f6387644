"""VHL: a virtual labelled set that all clients align with (Tang et al., ICML 2022)."""
