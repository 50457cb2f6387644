"""Federated learning under domain shift: published methods as small composable parts."""

__version__ = "0.1.0"

from fedshift.aggregate import Aggregator, Mean
from fedshift.comparison import compare
from fedshift.errors import FedshiftError
from fedshift.experiment import Listener, find_scenario, run
from fedshift.method import Method, Part, Phase, Player
from fedshift.net import Net, Output, Scope
from fedshift.registry import build, register, register_backbone, register_scenario
from fedshift.results import Comparison, RunResult
from fedshift.scenario import Scenario

__all__ = [
    "Aggregator",
    "Comparison",
    "FedshiftError",
    "Listener",
    "Mean",
    "Method",
    "Net",
    "Output",
    "Part",
    "Phase",
    "Player",
    "RunResult",
    "Scenario",
    "Scope",
    "build",
    "compare",
    "find_scenario",
    "register",
    "register_backbone",
    "register_scenario",
    "run",
]
