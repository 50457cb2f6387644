"""FedDebias: pseudo-data against the bias of local training."""
