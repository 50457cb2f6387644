"""PartialFed-Adaptive: each client learns which layers it loads.

Re-implemented from the paper's description: there is no reference code, and the constants of the
policy (its optimiser, temperature and start) are choices of this project.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fedshift import (
    Batch,
    Client,
    Method,
    Net,
    Optimisation,
    Output,
    Part,
    Scoring,
    Tree,
    call,
    register,
    setting,
    tree,
)
from fedshift.core.net import load
from fedshift.methods.partialfed.gates import first_logits, gates, logistic, temperature
from fedshift.methods.shared.layers import layers
from fedshift.methods.shared.tuning import aside, own_batches, take_steps, task_turn


@dataclass(frozen=True)
class LoadingPolicy(Part):
    """w_k^l starts from a_l theta^l + (1 - a_l) w_k^l of the last visit, a_l in {0, 1} per layer.

    P(a_l = 1) = sigmoid(logit_l). Before training, the logits take a pass of Adam on the task loss
    of so mixed models, with all weights held fixed; then a is drawn and the layers are loaded. All
    layers are sent and averaged, also those that were not loaded. A BatchNorm is a layer, and its
    statistics follow its gate. Logits and the client's last weights stay in its state; the likelier
    choice of each layer is scored.
    """

    load_chance: float = setting(0.5, "P(a = 1) at the start", low=0.0, high=1.0)
    policy_lr: float = setting(0.01, "rate of the logits", low=0.0)
    policy_epochs: int = setting(1, "passes over the samples for the logits", low=0)
    hot: float = setting(1.0, "temperature in round 1", low=1e-6)
    cold: float = setting(0.1, "temperature in the last round", low=1e-6)

    def groups(self, client: Client) -> list[list[str]]:
        """Shared entries of each layer, inputs first; private ones are loaded from nowhere."""
        found = [[k for k in keys if k in client.sent] for keys in layers(client.net).values()]
        return [keys for keys in found if keys]

    def begin(self, client: Client) -> None:
        """Learn the policy, draw the gates and load; the first visit starts from theta."""
        kept, groups = client.state[self.name], self.groups(client)
        like = next(client.net.parameters())
        logits = kept.get("logits", first_logits(self.load_chance, like, len(groups)))
        own = tree.under("own", kept)
        if own:
            logits = self.learnt(client, own, logits)
            drawn = gates(logits, logistic(len(logits), client.generator(self.name)), 1.0)
            load(client.net, self.mixed(client, own, drawn))
        client.state[self.name] = {"logits": logits}

    def mixed(self, client: Client, own: Tree, a: Tensor) -> Tree:
        """Every shared entry from theta or from ``own``; buffers have no gradient."""
        trained = {name for name, _ in client.net.named_parameters()}
        out: Tree = {}
        for gate, keys in zip(a, self.groups(client), strict=True):
            for key in keys:
                theta = client.received[key]
                if key in trained:
                    out[key] = gate * theta + (1 - gate) * own[key]
                else:
                    out[key] = (theta if bool(gate > 0.5) else own[key]).clone()
        return out

    def learnt(self, client: Client, own: Tree, logits: Tensor) -> Tensor:
        """The logits after ``policy_epochs`` passes, with gates of their own for each batch."""
        last, generator = max(1, client.scenario.rounds - 1), client.generator(self.name)
        heat = temperature(self.hot, self.cold, min(1.0, (client.round - 1) / last))
        net, moved = client.net, nn.Parameter(logits.clone())

        def forward(batch: Batch) -> Output:
            a = gates(moved, logistic(len(moved), generator), heat)
            return call(net, self.mixed(client, own, a), batch.x)

        with aside(net):
            chosen = Optimisation("adam", lr=self.policy_lr)
            turn = task_turn(client, self.name, [("logits", moved)], forward, chosen)
            take_steps(client, turn, own_batches(client, self.policy_epochs, generator))
        return moved.detach()

    def finish(self, client: Client) -> Tree:
        """Keep the trained values of all shared entries; nothing more is sent."""
        own = tree.pick(client.net.state_dict(), client.sent)
        client.state[self.name] |= tree.prefixed("own", tree.clone(own))
        return {}

    def predict(self, net: Net, x: Tensor, scoring: Scoring) -> Tensor | None:
        """The newest theta, with the client's own values in layers that it would rather skip."""
        client = scoring.client
        own = tree.under("own", client.state[self.name]) if client else {}
        if client is None or not own:
            return None
        likely = zip(client.state[self.name]["logits"], self.groups(client), strict=True)
        skipped = {key for logit, keys in likely if logit < 0 for key in keys}
        return call(net, tree.pick(own, skipped), x).logits


@register("partialfed", paper="Sun et al., NeurIPS 2021", group="personal")
def partialfed() -> Method:
    """Each site learns which layers of the shared model it loads.

    A site continues from its own values in some layers and takes the shared model in the others.
    One number per layer says how likely it is loaded, and is learnt on the site's own samples.

    Use it: it is not known which layers carry what is peculiar to a site.
    Not for: few rounds, or comparison with the authors' numbers, as their constants are unknown.
    Equations: the mixed start: `LoadingPolicy.begin`; the Gumbel-softmax: `gates`.
    """
    return Method((LoadingPolicy(),))
