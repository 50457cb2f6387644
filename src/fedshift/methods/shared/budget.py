"""The length of a client's visit, for schedules and for methods that divide it."""

from __future__ import annotations

from fedshift import Client


def visit_batches(client: Client) -> int:
    """B: batches of the scenario's budget; a trailing single row joins the batch before it."""
    scenario = client.scenario
    if scenario.steps:
        return scenario.steps
    full, rest = divmod(client.examples, scenario.batch_size)
    return (scenario.epochs or 1) * max(1, full + (rest > 1))
