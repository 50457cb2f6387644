"""PARDON: one interpolated style for all and contrast with it (Nguyen et al., 2025; FISC)."""
