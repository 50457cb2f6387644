"""FedKA: feature matching with the target at the server, federated voting."""
