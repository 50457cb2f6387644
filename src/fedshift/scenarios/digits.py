"""Scenarios that need no download: looks of digits, and the questions that papers ask of them."""

from __future__ import annotations

from typing import Any

from fedshift import Scenario, register_scenario
from fedshift.data.dealing.label_skew import SequentialDirichlet
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


def _question(name: str, asks: str | None, **changes: Any) -> Scenario:
    """The same looks with all 150 images of each to train on, as the demo and the papers ask."""
    base = {"rounds": 16, "evaluate_every": 4, "private_at_new_site": "mean", "unseen": None}
    told = {"name": f"digits/{name}", "summary": (asks or "").splitlines()[0]}
    return digits().change(**base | changes | told)


@register_scenario("digits/personal")
def digits_personal() -> Scenario:
    """Which model is best for each site? Four sites, one look each."""
    return _question(
        "personal",
        digits_personal.__doc__,
        partition=PerDomain(),
        protocols=("personal",),
        bn="recompute",
    )


@register_scenario("digits/global")
def digits_global() -> Scenario:
    """Which one model is best for all, and for the worst look? Eight sites, two per look."""
    partition = PerDomain(clients_per_domain=2)
    return _question(
        "global", digits_global.__doc__, partition=partition, protocols=("global",), rounds=20
    )


@register_scenario("digits/unseen")
def digits_unseen() -> Scenario:
    """Which model is best at a site that took no part, before and after it adapts without labels?

    The same local steps for all: CSAC's first round is nine budgets long.
    """
    return _question(
        "unseen",
        digits_unseen.__doc__,
        unseen="outline",
        partition=PerDomain(),
        protocols=("unseen", "unseen-adapted"),
        equal="steps",
    )


@register_scenario("digits/target")
def digits_target() -> Scenario:
    """Which model is best on a look of which the server has images but no labels?"""
    return _question(
        "target",
        digits_target.__doc__,
        domains=("scan", "outline", "print", "meter"),
        unseen="photo",
        partition=PerDomain(),
        protocols=("unseen", "unseen-adapted"),
        rounds=24,
    )


@register_scenario("digits/label-skew")
def digits_label_skew() -> Scenario:
    """Which one model is best if most sites have few classes only? 16 sites, four per look.

    A net without normalisation, as in FedDebias's paper.
    """
    return _question(
        "label-skew",
        digits_label_skew.__doc__,
        partition=SequentialDirichlet(clients=4),
        protocols=("global",),
        backbone="lenet",
        steps=10,
        batch_size=32,
        lr=0.1,
        rounds=20,
    )


@register_scenario("digits-pooled")
def digits_pooled() -> Scenario:
    """The same images at one client: what a model could learn if data could be pooled."""
    return digits().change(
        name="digits-pooled",
        partition=Pooled(clients_per_domain=2, samples_per_client=40),
        protocols=("global", "unseen"),
    )
