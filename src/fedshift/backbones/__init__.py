"""Networks with named stages, one file per family; every module here is discovered and imported."""
