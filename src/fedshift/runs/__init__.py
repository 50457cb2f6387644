"""Run directories: configuration, metrics, ledger and checkpoints.

Sessions write them, results and reports read them; nothing in them is ever unpickled.
"""
