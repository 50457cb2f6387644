"""The version, in the one place that the package, its messages and the build read it from."""

__version__ = "0.2.0"
