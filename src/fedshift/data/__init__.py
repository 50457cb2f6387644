"""Datasets, partitions and samples."""
