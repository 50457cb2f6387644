"""Deployment over Flower for an operations person: certificates, keys, daemons, runs."""
