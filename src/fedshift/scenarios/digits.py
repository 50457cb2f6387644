"""The scenario that needs no download: four looks of digits to train on, a fifth unseen."""

from __future__ import annotations

from fedshift import Scenario, register_scenario
from fedshift.data.dealing.partitions import PerDomain, Pooled


@register_scenario("digits")
def digits() -> Scenario:
    """Eight clients, two per look (scan, photo, print, meter), 40 images each; outline unseen."""
    return Scenario(
        name="digits",
        data="digits",
        domains=("scan", "photo", "print", "meter"),
        unseen="outline",
        partition=PerDomain(clients_per_domain=2, samples_per_client=40),
        rounds=30,
        epochs=2,
        batch_size=16,
        lr=0.05,
        protocols=("personal", "global", "unseen", "unseen-adapted"),
        private_at_new_site="mean",
        evaluate_every=3,
        allow=("client_val", "domain_ids", "server_unlabelled"),
    )


@register_scenario("digits-pooled")
def digits_pooled() -> Scenario:
    """The same images at one client: what a model could learn if data could be pooled."""
    return digits().change(
        name="digits-pooled",
        partition=Pooled(clients_per_domain=2, samples_per_client=40),
        protocols=("global", "unseen"),
    )
