"""Makes docs/tables/leaks.md and docs/assets/leaks-*.png: what a curious server can see.

Each attack gets a message of a real visit on the embedded digits and what the server knows anyway:
the method, the model that it sent, the learning rate, the run's seed. It returns images. These are
compared with the training images of the site and, as a baseline, with those of another site of the
same look: the largest correlation over as many images each. Half a minute on one core.

    python scripts/leaks.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedshift.base import seeds
from fedshift.base.tree import Tree
from fedshift.core.config import configure
from fedshift.core.message import Broadcast, Update
from fedshift.core.net import Net, call
from fedshift.core.registry import SCENARIOS
from fedshift.core.scenario import Scenario
from fedshift.data.dealing.partitions import PerDomain
from fedshift.data.samples import Samples, union
from fedshift.engine.visit import Worker
from fedshift.experiment.session import Session, prepare
from fedshift.transports.inprocess import InProcess

DOCS = Path(__file__).parent.parent / "docs"
SITE, OTHER = "scan-0", "scan-1"
SEEN = 0.9  # correlation from which on an image counts as recovered
LOW, HIGH = -2.0, 2.0  # of a pixel, as nets get it
PRIVATE = {"private_at_new_site": "refuse"}  # digits' default is nothing that a privacy part allows


def start(method: str, scenario: Scenario, **changes: Any) -> Session:
    """A run before round 1."""
    return prepare(*configure(method, scenario.change(**changes), seed=0), None)


def worker(session: Session) -> Worker:
    """The sites' half of a run."""
    assert isinstance(session.transport, InProcess)
    return session.transport.worker


def ask(session: Session, site: str, task: str, round_: int) -> Update:
    """The message that one site sends for a task."""
    payload = session.server.method.gather(lambda part: part.send(session.server, site))
    sent = Broadcast(site, task, round_, shared=session.server.shared, payload=payload)
    return worker(session).visit(sent).own()


def gradient(before: Tree, after: Tree, lr: float) -> Tree:
    """What a step of SGD tells: (theta - theta') / lr; a mean of gradients after several steps."""
    return {k: (before[k] - after[k]) / lr for k in after}


def layer_inputs(weight: Tensor, bias: Tensor, count: int) -> Tensor:
    """Inputs (count, D) of a linear layer from its gradient (Phong et al., 2018).

    Row i of the weight's gradient is a sum over samples of delta_i x, and the bias's that of
    delta_i: if a unit was active for one sample only, their ratio is that sample. Of all ratios,
    those in the range of pixels are taken, each once, the surest first.
    """
    sure = bias.abs().argsort(descending=True)
    rows = (weight / bias.where(bias != 0, torch.inf)[:, None])[sure]
    excess = (rows - rows.clamp(LOW, HIGH)).abs().amax(1)
    rows = rows[excess.argsort(stable=True)]
    chosen: list[int] = []
    like = torch.corrcoef(rows[:200]).nan_to_num(1.0)
    for i in range(len(like)):
        if len(chosen) < count and all(like[i, j] < SEEN for j in chosen):
            chosen.append(i)
    return rows[chosen].clamp(LOW, HIGH)


def head_features(grads: Tree, count: int) -> Tensor:
    """Features of ``count`` samples from the head's gradient, one per class that is there.

    A class whose bias has a negative gradient is in the batch (Zhao et al., 2020, for one sample).
    """
    bias, weight = grads["head.bias"], grads["head.weight"]
    classes = bias.argsort()[:count]
    return (weight / bias[:, None])[classes]  # (count, D)


def smoothness(x: Tensor) -> Tensor:
    """Total variation, a mean over pixels."""
    return x.diff(dim=2).abs().mean() + x.diff(dim=3).abs().mean()


def invert(net: Net, entries: Tree, features: Tensor, steps: int = 300) -> Tensor:
    """Images (n, C, H, W) whose features are ``features`` (n, D), by descent from noise."""
    x = 0.1 * torch.randn(len(features), *net.shape, generator=seeds.generator("invert"))
    x.requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    wanted = features.square().sum(1)  # (n,)
    net.eval()
    for _ in range(steps):
        optimiser.zero_grad()
        found = call(net, entries, x).features
        apart = (found - features).square().sum(1) / wanted
        (apart.sum() + 0.1 * len(x) * smoothness(x)).backward()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            x.clamp_(LOW, HIGH)
    return x.detach()


def unmixed(messages: Sequence[Update], examples: int, settings: Any) -> Tensor:
    """A site's images (n, ...) from several messages of FedDebias' means, given the run's seed.

    Which samples are in which mean follows from the seed, so each mean is a linear equation in the
    images; with as many as images, all are solved for.
    """
    rows, means = [], []
    for message in messages:
        drawn = seeds.generator(0, message.round, message.client, settings.name)
        count = settings.per_client * settings.per_sample
        positions = torch.randint(examples, (count,), generator=drawn)
        mixing = torch.zeros(settings.per_client, examples, dtype=torch.float64)
        own = torch.arange(settings.per_client).repeat_interleave(settings.per_sample)
        mixing.index_put_((own, positions), torch.tensor(1.0).double(), accumulate=True)
        rows.append(mixing / settings.per_sample)
        means.append(message.payload[f"{settings.name}/means"].double())
    known = torch.cat(means)
    solved = torch.linalg.lstsq(torch.cat(rows), known.flatten(1), driver="gelsd").solution
    return solved.view(examples, *known.shape[1:]).float()


def images(samples: Samples) -> Tensor:
    """All inputs of a site."""
    return samples.take(torch.arange(len(samples)))[0]


def correlations(found: Tensor, true: Tensor, usual: Tensor) -> Tensor:
    """Correlation of pixels (n, m) of images (n, ...) with images (m, ...).

    ``usual``, the mean image of the look, is taken off first: paper and frame, which all images of
    a look have in common, are no secret and would make any two of them alike.
    """

    def unit(x: Tensor) -> Tensor:
        flat = (x - usual).flatten(1).double()
        flat = flat - flat.mean(1, keepdim=True)
        return flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12)

    return unit(found) @ unit(true).T


@dataclass(frozen=True)
class Seen:
    """What an attack found, beside the site's images that are nearest."""

    what: str
    found: Tensor
    own: Tensor  # correlations with the site's images, (n, m)
    other: Tensor
    truth: Tensor
    of: int  # images that were in what was sent

    @property
    def own_mean(self) -> float:
        """Largest correlation with an image of the site, mean over what was found."""
        return float(self.own.amax(1).mean())

    @property
    def other_mean(self) -> float:
        """The same with another site's images."""
        return float(self.other.amax(1).mean())

    @property
    def recovered(self) -> int:
        """Images of the site that are among those found."""
        return int((self.own.amax(0) >= SEEN).sum())

    def row(self) -> str:
        """A row of the table."""
        cells = (f"{self.own_mean:.2f}", f"{self.other_mean:.2f}", f"{self.recovered} of {self.of}")
        return f"| {self.what} | " + " | ".join(cells) + " |"


def as_usual(found: Tensor, samples: Samples) -> Tensor:
    """Grey images with the brightness and contrast of a look, which a normalised net forgets."""
    known = images(samples)
    grey = found.mean(1, keepdim=True).expand_as(found)
    middle, spread = grey.mean((1, 2, 3), keepdim=True), grey.std((1, 2, 3), keepdim=True)
    return (grey - middle) / spread.clamp(min=1e-12) * known.std() + known.mean()


def judge(what: str, found: Tensor, sites: Sequence[Samples], of: int) -> Seen:
    """Compare images with those of the attacked site (the first) and of another one."""
    own, other = (images(site) for site in sites)
    found = found.view(-1, *own.shape[1:])
    usual = other.mean(0)
    near, far = (correlations(found, one, usual) for one in (own, other))
    return Seen(what, found, near, far, own[near.argmax(1)], of)


def pair(session: Session, site: str = SITE, other: str = OTHER) -> list[Samples]:
    """Training data of the attacked site and of the other one."""
    sites = worker(session).sites
    return [sites[site].data.train, sites[other].data.train]


def everybody(session: Session) -> list[Samples]:
    """Training data of all sites, and as many images that no site has."""
    sites = worker(session).sites.values()
    held = union([site.data.train for site in sites])
    unseen = union([site.data.test for site in {s.domain: s for s in sites}.values()])
    spread = torch.linspace(0, len(unseen) - 1, min(len(held), len(unseen))).long()
    return [held, replace(unseen, rows=unseen.rows[spread])]


def digits(**changes: Any) -> Scenario:
    """The embedded digits: eight sites of 40 images."""
    return SCENARIOS.get("digits").build().change(**changes)


def means() -> list[Seen]:
    """FedDebias' means of ten inputs: one message, then five with the seed."""
    session = start("feddebias", digits(backbone_options={"width": 8}))
    first = ask(session, SITE, "enrol", 0)
    part = session.server.method.parts[0]
    session.server.state[part.name] = {"batch": first.payload[f"{part.name}/means"]}
    later = [ask(session, SITE, "train", t) for t in range(1, 6)]
    sites = pair(session)
    seen = first.payload[f"{part.name}/means"]
    solved = unmixed([first, *later], first.examples, part)
    return [
        judge("means of 10 images, one message", seen, sites, 40),
        judge("means of 10 images, six messages and the seed", solved, sites, 40),
    ]


def prototypes(per_class: int) -> Seen:
    """FPL's class means of features, through the net that the site has sent with them."""
    dealt = PerDomain(clients_per_domain=2, samples_per_client=10 * per_class)
    net = {"norm": "group", "width": 16}
    session = start("fpl", digits(partition=dealt, backbone_options=net))
    sent = ask(session, SITE, "train", 1)
    features = sent.payload["cluster-prototypes/means"]
    found = invert(worker(session).net, sent.shared, features)
    what = f"class means of features, {per_class} image{'s' * (per_class > 1)} per class"
    sites = pair(session)
    return judge(what, as_usual(found, sites[1]), sites, 10 * per_class)


def one_step(what: str, *, batch: int, steps: int = 1, method: str = "fedavg") -> Seen:
    """The update of a net without convolutions, by the ratio of gradients."""
    net = {"backbone": "mlp", "backbone_options": {"norm": "none", "hidden": 200}}
    work = {"epochs": None, "steps": steps, "batch_size": batch}
    session = start(method, digits(**net, **work, **PRIVATE))
    before = dict(session.server.shared)
    after = ask(session, SITE, "train", 1).shared
    g = gradient(before, after, session.server.scenario.lr)
    found = layer_inputs(g["layer1.0.weight"], g["layer1.0.bias"], batch)
    return judge(what, found, pair(session), batch)


def secure_sum() -> list[Seen]:
    """All that a curious server has of secure aggregation: the mean of eight sites' updates."""
    net = {"backbone": "mlp", "backbone_options": {"norm": "none", "hidden": 200}}
    work = {"epochs": None, "steps": 1, "batch_size": 1}
    session = start(SUM, digits(**net, **work, **PRIVATE))
    before = dict(session.server.shared)
    session.advance()
    g = gradient(before, session.server.shared, session.server.scenario.lr)
    found = layer_inputs(g["layer1.0.weight"], g["layer1.0.bias"], 8)
    what = "`secure-aggregation`: sum of eight sites, `mlp`, batch of 1"
    return [
        judge(f"{what}; images of `{SITE}`", found, pair(session), 1),
        judge(f"{what}; images of any site", found, everybody(session), 8),
    ]


def through_features(what: str, *, batch: int, method: str = "fedavg") -> Seen:
    """The update of a convolutional net: features from the head's gradient, then inverted."""
    net = {"backbone_options": {"norm": "group", "width": 16}}
    work = {"epochs": None, "steps": 1, "batch_size": batch}
    session = start(method, digits(**net, **work, **PRIVATE))
    before = dict(session.server.shared)
    after = ask(session, SITE, "train", 1).shared
    features = head_features(gradient(before, after, session.server.scenario.lr), batch)
    found = invert(worker(session).net, before, features)
    sites = pair(session)
    return judge(what, as_usual(found, sites[1]), sites, batch)


NOISE = "fedavg + local-dp[clip=1, noise=1, randomness=system]"
SUM = "fedavg + secure-aggregation[randomness=system]"


def everything() -> dict[str, list[Seen]]:
    """All attacks, by picture."""
    return {
        "means": means(),
        "features": [prototypes(4), prototypes(1)],
        "updates": [
            one_step("update of `mlp`, one step, batch of 1", batch=1),
            one_step("update of `mlp`, one step, batch of 8", batch=8),
            one_step("update of `mlp`, five steps, batch of 8", batch=8, steps=5),
            through_features("update of `cnn`, one step, batch of 1", batch=1),
            through_features("update of `cnn`, one step, batch of 8", batch=8),
        ],
        "protected": [
            one_step("`local-dp`: update of `mlp`, one step, batch of 1", batch=1, method=NOISE),
            through_features("`local-dp`: the same of `cnn`", batch=1, method=NOISE),
            *secure_sum(),
        ],
    }


def picture(rows: Sequence[Seen], columns: int = 8) -> Image.Image:
    """For each attack a row of what was found above the nearest true images."""
    size, gap = 32, 3
    strips = []
    for seen in rows:
        order = seen.own.amax(1).argsort(descending=True)[:columns]
        for x in (seen.found[order], seen.truth[order]):
            strip = np.full((size, columns * (size + gap), 3), 255, dtype=np.uint8)
            shown = ((x.clamp(LOW, HIGH) - LOW) / (HIGH - LOW) * 255).byte().permute(0, 2, 3, 1)
            for i, one in enumerate(shown.numpy()):
                strip[:, i * (size + gap) : i * (size + gap) + size] = one
            strips.append(strip)
        strips.append(np.full((2 * gap, columns * (size + gap), 3), 255, dtype=np.uint8))
    whole = Image.fromarray(np.concatenate(strips))
    return whole.resize((whole.width * 2, whole.height * 2), Image.Resampling.NEAREST)


def main() -> None:
    """Run the attacks and write the files."""
    torch.set_num_threads(1)
    lines = ["| what the server has | own site | other site | recovered |", "|---|---:|---:|---:|"]
    for name, rows in everything().items():
        lines += [seen.row() for seen in rows]
        drawn = picture(rows).quantize(64)
        drawn.save(DOCS / "assets" / f"leaks-{name}.png", optimize=True)
    (DOCS / "tables" / "leaks.md").write_text("\n".join([*lines, ""]))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
