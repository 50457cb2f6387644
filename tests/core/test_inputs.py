"""A visit's raw inputs never reach a file: the attack writes them wherever a part may write."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedshift.base.errors import RunError
from fedshift.core.method import Method
from fedshift.core.net import Neck, Scope
from fedshift.core.part import Part
from fedshift.core.payload import PayloadSpec, Size
from fedshift.engine.inputs import InputGuard
from fedshift.testing import play, start, tiny_scenario, worker


def raw(client, step=None):
    """A batch of inputs as the net sees them."""
    return client.site.data.train.take(torch.arange(4))[0] if step is None else step.batch.x


def stored(client):
    """The same as bytes, channels last."""
    train = client.site.data.train
    return train.x[train.rows[:4]]


class Album(Neck):
    """A neck with a buffer of the size of a few inputs."""

    def __init__(self, shape):
        super().__init__()
        self.register_buffer("page", torch.zeros(4, *shape))

    def forward(self, maps):
        return maps, {}


@dataclass(frozen=True)
class Writes(Part):
    """Writes inputs to one place that outlives the visit, in one form."""

    place: str = ""
    form: str = "batch"

    def value(self, client, step):
        x = raw(client, step)
        forms = {
            "batch": x,
            "copy": x.clone(),
            "half": x.half(),
            "bfloat16": x.bfloat16(),
            "double": x.double(),
            "flat": x.flatten(1),
            "one": x[0],
            "stacked": x[None],
        }
        if self.form in forms:
            return forms[self.form]
        images = stored(client)
        return images if self.form == "stored" else images.permute(0, 3, 1, 2) / 255

    def build(self, net):
        if self.place.startswith("net"):
            stage = next(iter(net.stages))
            net.insert("album", Album(net.shape), after=stage)

    def scope(self, net):
        kept = self.place == "net, private"
        return {"extra.album.page": Scope.PRIVATE} if kept else {}

    def uploads(self, model):
        x = PayloadSpec((Size("n", most=99), *model.net.shape), optional=True)
        return {"enrol": {"x": x}, "train": {"x": x}}

    def enrol(self, client):
        if self.place == "summary":
            return {"x": raw(client)}
        if self.place == "state at enrolment":
            client.state[self.name]["x"] = raw(client)
        return {}

    def probe(self, client):
        return {"x": raw(client)} if self.place == "probe" else {}

    def loss(self, client, step):
        value = self.value(client, step)
        if self.place == "state":
            client.state[self.name]["x"] = value
        if self.place == "another's state":
            client.state["net"]["x"] = value
        if self.place == "optimiser state":
            client.state["optimiser"]["x"] = value
        if self.place == "scratch":
            client.scratch[self.name]["x"] = value
        if self.place == "memo":
            step.batch.memo["x"] = value
        if self.place.startswith("net"):
            client.net.extra["album"].page[: len(value)] = value[:4]
        return

    def finish(self, client):
        return {"x": raw(client)} if self.place == "payload" else {}

    def merge(self, server, updates):
        for update in updates:
            for key, value in update.payload.items():
                server.state[self.name][f"{update.client}/{key}"] = value


def inputs_on_disk(folder, session):
    """Names of files that contain the bytes of an input, normalised or stored, in any precision."""
    needles = []
    for site in worker(session).sites.values():
        for x, _ in site.data.train.chunks():
            for dtype in (torch.float16, torch.float32, torch.float64):
                needles += [row.to(dtype).numpy().tobytes() for row in x.flatten(1)]
        needles += [site.data.train.x[row].numpy().tobytes() for row in site.data.train.rows]
    files = [f for f in folder.rglob("*") if f.is_file()]
    assert files
    return [f.name for f in files if any(n in f.read_bytes() for n in needles)]


def attack(place, path):
    return play(start(Method((Writes(place=place),)), path=path), 2)


PLACES = ["summary", "probe", "state", "state at enrolment", "another's state", "optimiser state"]
PLACES += ["payload", "net, shared", "net, private"]


@pytest.mark.parametrize("place", PLACES)
def test_inputs_are_refused_wherever_they_would_be_kept_and_no_file_has_them(place, tmp_path):
    with pytest.raises(RunError, match="contains an input of the site"):
        attack(place, tmp_path)
    assert inputs_on_disk(tmp_path, start("fedavg")) == []


@pytest.mark.parametrize("place", ["state", "payload", "net, private"])
def test_without_the_guard_the_files_have_them(place, tmp_path, monkeypatch):
    monkeypatch.setattr(InputGuard, "refuse", lambda *_: None)
    assert inputs_on_disk(tmp_path, attack(place, tmp_path))


@pytest.mark.parametrize("place", ["scratch", "memo"])
def test_memory_of_one_visit_takes_inputs_and_no_file_has_them(place, tmp_path):
    session = play(start(Method((Writes(place=place),)), path=tmp_path))
    assert inputs_on_disk(tmp_path, session) == []
    assert session.transport.store.load("dark-0", before=9) == {}


FORMS = ["copy", "half", "bfloat16", "double", "flat", "one", "stacked", "stored", "unit"]


@pytest.mark.parametrize("form", FORMS)
def test_copies_in_any_form_are_found(form):
    with pytest.raises(RunError, match=r"client.state\['writes'\] contains an input .*\(x\)"):
        play(start(Method((Writes(place="state", form=form),))), 1)


def test_augmented_inputs_are_found_too():
    with pytest.raises(RunError, match="contains an input of the site"):
        play(start(Method((Writes(place="state"),)), augment="f2dc"), 1)


@dataclass(frozen=True)
class Keeps(Part):
    """State of the shape of inputs that is none: zeros, noise, a mean of many, what was sent."""

    def send(self, server, client):
        return {"x": worker_input()}

    def finish(self, client):
        mean = torch.cat([x for x, _ in client.site.data.train.chunks()]).mean(0)
        noise = torch.randn(client.net.shape, generator=client.generator(self.name))
        client.state[self.name] = {"zero": torch.zeros(2, *client.net.shape), "noise": noise}
        client.state[self.name] |= {"mean": mean, "sent": client.payload(self)["x"]}
        return {}


def worker_input():
    """An input of a site, which the server happens to send."""
    session = start("fedavg")
    return next(worker(session).sites["dark-0"].data.train.chunks())[0][:2]


def test_what_is_no_input_of_the_site_may_be_kept():
    session = play(start(Method((Keeps(),))), 2)
    assert session.transport.store.load("dark-0", before=9)["keeps"].keys() >= {"mean", "sent"}


def test_vectors_are_told_from_weights_of_their_width(tmp_path):
    # the first layer of an MLP has rows of the width of an input
    from fedshift.data.registry import register_dataset
    from fedshift.data.samples import Domain

    @register_dataset("narrow vectors")
    def narrow():
        x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
        split = torch.tensor([0] * 24 + [1] * 8 + [2] * 8, dtype=torch.uint8)
        return {d: Domain(d, x, torch.arange(40) % 2, split, ("a", "b")) for d in "de"}

    changes = {"data": "narrow vectors", "domains": ("d", "e"), "unseen": None, "backbone": "mlp"}
    changes |= {"backbone_options": {}, "protocols": ("personal",)}
    tiny_scenario(**changes)
    play(start("scaffold", **changes), 2)
    with pytest.raises(RunError, match="contains an input"):
        play(start(Method((Writes(place="state"),)), **changes), 1)
