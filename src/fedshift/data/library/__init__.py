"""Datasets that are known by name: prepared once, memory-mapped, inspected."""
