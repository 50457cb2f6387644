"""Scenarios by name, one file per source; every module here is found by itself."""
