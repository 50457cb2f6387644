"""Federated learning under domain shift: published methods as small composable parts."""

__version__ = "0.1.0"
