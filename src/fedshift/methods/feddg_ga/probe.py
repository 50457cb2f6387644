"""What each client measures: the received and the trained model on its validation samples."""

from __future__ import annotations

import torch

from fedshift import (
    Client,
    ConfigError,
    ModelSpec,
    Part,
    PayloadSpec,
    Tree,
    Uploads,
    score,
)


class GapProbe(Part):
    """Sends the loss and the main measure of the received and of the trained model: four numbers.

    Both are taken on the client's validation samples, in eval mode.
    """

    needs = frozenset({"client_val"})
    shares = "validation loss and score of the received and of the trained model"

    def uploads(self, model: ModelSpec) -> Uploads:
        """Loss and score, before and after training."""
        task = model.scenario.task
        low = None if task.main in task.numbers else 0.0
        scores = PayloadSpec((), torch.float64, low=low, high=100.0)
        losses = PayloadSpec((), torch.float64, low=0.0)
        return {
            "train": {
                "received/loss": losses,
                "received/score": scores,
                "trained/loss": losses,
                "trained/score": scores,
            }
        }

    def enrol(self, client: Client) -> Tree:
        """Sends nothing; raises if there is nothing to compare models on."""
        if not len(client.site.data.val):
            raise ConfigError(
                f"client {client.id} has no validation samples, and {self.name} compares models on "
                "them; use a split with validation rows"
            )
        return {}

    def probe(self, client: Client) -> Tree:
        """The received model: the "after" of the last round's aggregation."""
        return self._measured(client, "received")

    def finish(self, client: Client) -> Tree:
        """The trained model: the "before" of this round's aggregation."""
        return self._measured(client, "trained")

    @staticmethod
    def _measured(client: Client, model: str) -> Tree:
        client.net.eval()
        found = score(lambda x: client.net(x).logits, client.site.data.val, client.task)
        numbers = {"loss": found["loss"] / found["count"], "score": found[client.task.main]}
        return {f"{model}/{k}": torch.tensor(v, dtype=torch.float64) for k, v in numbers.items()}
