"""Scenarios by name, one file per source; every module here is discovered and imported."""
