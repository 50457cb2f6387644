"""Imported once by the process whose children play the messages."""

from __future__ import annotations

import flwr.superlink.cli.flwr_serverapp
import flwr.supernode.runtime.run_clientapp

import fedshift.deploy.apps
import fedshift.deploy.tasks
from fedshift.registry import BACKBONES, DATASETS, METHODS, SCENARIOS

__all__ = ["fedshift", "flwr"]

for registry in (METHODS, BACKBONES, SCENARIOS, DATASETS):
    registry.entries()
