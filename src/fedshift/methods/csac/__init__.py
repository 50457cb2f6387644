"""CSAC: semantic acquisition and layer-wise fusion without target data."""
