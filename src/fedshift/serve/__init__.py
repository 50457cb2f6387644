"""From a trained run to a model in use: exported files, model cards, predictions, a service."""
