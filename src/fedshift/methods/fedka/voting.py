"""Federated voting of FedKA: fine-tune at the server on majority labels of the target.

After each round the server has the participants' models and an unlabelled target. In ``merge``,
before aggregation, each model classifies the same random target inputs, and the majority of these
votes becomes an input's pseudo-label. In ``refine``, after aggregation, the global model G takes
one optimiser step per batch of these inputs and labels, which gives G*. The next round starts from
G*.

Taken literally this can destroy a model: voters normalise the target by their source's statistics
and are mostly wrong early on, the server takes many more steps on their labels than a client does
on its own, and the next round's voters start from what it learnt. So four precautions of ours are
the default, and ``paper_literal`` switches all of them off: see :class:`FederatedVoting`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedshift import Client, Part, Server, Tree, Update, setting, tree
from fedshift.core.net import load
from fedshift.data.samples import split_rows
from fedshift.methods.fedka.equations import (
    agreement,
    coefficient,
    majority,
    more_than_half,
    progress,
)
from fedshift.methods.fedka.fine_tuning import fine_tune
from fedshift.methods.shared.target import outputs_of


@dataclass(frozen=True)
class FederatedVoting(Part):
    """y* = majority of the clients' votes (Eq. 10), then G* = G - lambda_p eta grad J(y*, G(x)).

    Clients' models vote on ``voting_samples`` random target inputs. G* takes one step per batch
    with the scenario's optimiser, in train mode, so BatchNorm statistics move to the target unless
    they are ``kept``. lambda_p scales the step, as printed in Section 3.2.5; scaling the loss is
    the same for SGD but not for Adam, whose normalisation undoes it. b and B in lambda_p are the
    server's own batches. G* is the model that is sent and scored. No payload is sent, but the
    server has to see each client's model.

    Ours, and off with ``paper_literal``: voters normalise by the target's batches
    (``voter_statistics``); an input is used only if more than half of the voters agree on it; the
    step is also scaled by Fleiss' kappa between the voters, so that votes that agree by chance only
    move nothing; and the server takes no more inputs than a client does in its visit.
    """

    objectives = frozenset({"classification"})

    voting_samples: int = setting(2048, "target inputs voted on per round (Voting-S: 512)", low=2)
    voting_batch: int = setting(0, "inputs per fine-tuning step; 0: the scenario's", low=0)
    gamma: float = setting(5.0, "slope of lambda_p; 0 makes lambda_p = 0", low=0.0)
    statistics: str = setting(
        "target", "BatchNorm statistics while fine-tuning", choices=("target", "kept")
    )
    voter_statistics: str = setting(
        "auto",
        "BatchNorm statistics of voters; auto: target (as released), own with paper_literal",
        choices=("auto", "target", "own"),
    )
    paper_literal: bool = setting(
        False, "no strict majority, no weight by agreement, no cap by the clients' budget (ours)"
    )
    scale_loss: bool = setting(False, "lambda_p scales the loss, not the step (released code)")
    discard_voted: bool = setting(False, "G* is scored but clients start from G (released code)")
    needs = frozenset({"server_unlabelled"})
    needs_individual_updates = True

    def merge(self, server: Server, updates: Sequence[Update]) -> None:
        """Eq. 10: let the clients' models vote on random target inputs."""
        generator, classes = server.generator(self.name), server.net.classes
        target = server.resources["server_unlabelled"]
        rows = torch.randperm(len(target), generator=generator)[: self._count(server, updates)]
        ballots = torch.stack([self._answers(server, u, rows) for u in updates])  # (n, N)
        labels, trust = majority(ballots, classes, generator), 1.0
        if not self.paper_literal:
            agreed, trust = more_than_half(ballots, classes), agreement(ballots, classes)
            rows, labels = rows[agreed], labels[agreed]
        server.state[self.name] |= {"rows": rows, "labels": labels, "trust": torch.tensor(trust)}

    def _count(self, server: Server, updates: Sequence[Update]) -> int:
        """How many target inputs are voted on."""
        if self.paper_literal:
            return self.voting_samples
        budget = max(u.steps for u in updates) * server.scenario.batch_size
        return min(self.voting_samples, max(2, budget))

    def _answers(self, server: Server, update: Update, rows: Tensor) -> Tensor:
        """The votes of one client's model: a class (N,) for each target input."""
        return outputs_of(server, update, rows, by_target=self._by_target).logits.argmax(1)

    @property
    def _by_target(self) -> bool:
        """Whether voters normalise by the target's batches."""
        found = {"auto": "own" if self.paper_literal else "target"}
        return found.get(self.voter_statistics, self.voter_statistics) == "target"

    def refine(self, server: Server) -> None:
        """Fine-tune G to G* on the majority labels, if the voters agree on any."""
        held = server.state[self.name]
        rows, labels, trust = held.pop("rows"), held.pop("labels"), float(held.pop("trust"))
        if self.discard_voted:
            server.state[self.name] = held | tree.prefixed("sent", server.shared)
        if self.gamma == 0 or trust <= 0 or len(rows) < 2:
            return
        load(server.net, server.initial, server.shared)
        size = self.voting_batch or server.scenario.batch_size
        chunks = split_rows(torch.arange(len(rows)), size)
        fine_tune(
            server,
            self.name,
            [(rows[chunk], labels[chunk]) for chunk in chunks],
            [trust * self._lambda(server, b, len(chunks)) for b in range(len(chunks))],
            keep_statistics=self.statistics == "kept",
            scale_loss=self.scale_loss,
        )
        tuned = server.net.state_dict()
        server.shared = tree.clone({k: tuned[k] for k in server.shared})

    def _lambda(self, server: Server, batch: int, batches: int) -> float:
        """lambda_p at one of the server's batches of this round."""
        rounds = server.scenario.rounds
        p = progress(batch, batches, round_=server.round - 1, rounds=rounds)
        return coefficient(p, self.gamma)

    def send(self, server: Server, client: str) -> Tree:
        """G, if clients are to start from it (``discard_voted``); the model is then sent twice."""
        return tree.under("sent", server.state[self.name])

    def begin(self, client: Client) -> None:
        """Load G in place of G*, if it was sent."""
        load(client.net, client.payload(self))
