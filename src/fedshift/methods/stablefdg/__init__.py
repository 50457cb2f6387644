"""StableFDG: shared, shifted and explored styles, highlighted features (Park et al., 2023)."""
