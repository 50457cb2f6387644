"""Evaluation: which model is scored on which samples, and the metrics computed from the counts."""
