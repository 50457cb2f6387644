"""Run directories: configuration, metrics, ledger, checkpoints."""
