"""Deployment on real machines over Flower: certificates, keys, daemons and runs.

``cli.deploy`` calls it for ``fedshift server`` and ``fedshift site``; docs/deployment.md is its
manual. Only the folder ``deploy.flower`` imports Flower.
"""
