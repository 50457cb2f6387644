"""A trained model at a site that took no part: adapted without labels, fine-tuned with a few."""
