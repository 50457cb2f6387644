"""Aggregator = weighting x combining rule x server optimiser; any of each fit together."""

from fedshift.aggregate.optimisers import Add, ServerOptimiser
from fedshift.aggregate.rules import Aggregator, Mean
from fedshift.aggregate.weightings import ByExamples, Uniform, Weighting

__all__ = ["Add", "Aggregator", "ByExamples", "Mean", "ServerOptimiser", "Uniform", "Weighting"]
