"""The version: the one place from which the package, its records and the build read it."""

__version__ = "0.2.0"
