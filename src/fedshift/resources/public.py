"""A public data set at the server and at every client, with or without its labels."""

from __future__ import annotations

import torch

from fedshift.base.errors import DataError
from fedshift.core.resource import Resource, Side, register_resource
from fedshift.core.scenario import Scenario
from fedshift.data.federation import Federation
from fedshift.data.library.loaded import load
from fedshift.data.samples import Samples, union


@register_resource("public_set")
class PublicSet(Resource):
    """All rows of the data set that ``scenario.public`` names, without labels."""

    doc = "a public data set at the server and the clients"

    def missing(self, scenario: Scenario) -> tuple[str, str] | None:
        """The name of the data set."""
        if scenario.public is not None:
            return None
        return "name one with public='DATASET'", "scenario.public=DATASET"

    def open(self, federation: Federation, scenario: Scenario, side: Side) -> Samples | None:  # noqa: ARG002
        """The same samples on both sides."""
        assert scenario.public is not None
        found = public_samples(scenario.public, scenario, federation.shape)
        return found if "public_labels" in scenario.allow else found.unlabelled()


@register_resource("public_labels")
class PublicLabels(PublicSet):
    """Leave to see the labels of the public data set, in ``resources["public_set"]``."""

    doc = "the labels of the public data set"

    def open(self, *_: object) -> None:
        """Nothing by itself."""


def public_samples(name: str, scenario: Scenario, shape: tuple[int, ...]) -> Samples:
    """All samples of a data set, which must have the clients' input shape."""
    stores = load(name)
    first = next(iter(stores.values()))
    if first.shape != shape:
        raise DataError(
            f"public set {name!r} has inputs of shape {first.shape}, the clients of {shape}; take "
            "one of the same shape"
        )
    held = [Samples(d.x, d.y, torch.arange(len(d.y)), scenario.pixels) for d in stores.values()]
    return union(held)
