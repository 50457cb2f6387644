"""Datasets by name: prepared once in FEDSHIFT_HOME, then memory-mapped by every run.

Scenarios reach it through ``loaded.load`` and people through ``fedshift data``. It never downloads
anything that was not asked for, and never changes a source.
"""
