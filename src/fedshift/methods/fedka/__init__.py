"""FedKA: features matched to a target at the server, and federated voting on its labels."""
