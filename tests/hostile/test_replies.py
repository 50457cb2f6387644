"""Whatever a site sends, it is refused with the site's name or does no harm."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from alike import quick

from fedshift.core.payload import ANY, PayloadSpec, Size
from fedshift.core.registry import METHODS
from fedshift.transports.flower.envelope import Envelope, to_envelope

W, VAR, COUNTER = "head.weight", "block1.1.running_var", "block1.1.num_batches_tracked"
HUGE = 10**400


def spoil(key, value, section="shared"):
    """The last number of an entry is another one."""

    def change(update):
        entry = getattr(update, section)[key].clone()
        entry.view(-1)[-1] = value
        return replace(update, **{section: getattr(update, section) | {key: entry}})

    return change


def recast(key, change, section="shared"):
    return lambda u: replace(
        u, **{section: getattr(u, section) | {key: change(getattr(u, section)[key])}}
    )


def drop(key, section="shared"):
    return lambda u: replace(
        u, **{section: {k: v for k, v in getattr(u, section).items() if k != key}}
    )


def add(key, value, section="shared"):
    return lambda u: replace(u, **{section: getattr(u, section) | {key: value}})


def metric(**numbers):
    """Numbers of a reply to scoring: ``test_accuracy`` is ``test/accuracy``."""
    told = {key.replace("_", "/", 1): value for key, value in numbers.items()}
    return lambda u: replace(u, metrics=u.metrics | told)


def text(edit):
    """The JSON of the envelope, changed."""

    def change(update):
        whole = to_envelope([update], {})
        return Envelope(edit(whole.text), whole.blocks)

    return change


def scalars(**values):
    def edit(written):
        content = json.loads(written)
        content["messages"][0]["scalars"] |= values
        return json.dumps(content)

    return text(edit)


def layout(shape, dtype="float32"):
    """The first entry claims another shape or dtype than its bytes have."""

    def edit(written):
        content = json.loads(written)
        content["layouts"][0][0] = [content["layouts"][0][0][0], dtype, shape]
        return json.dumps(content)

    return text(edit)


def nested(depth):
    return text(lambda _: "[" * depth + "]" * depth)


def repeated(times):
    """One block, named again and again."""

    def edit(written):
        content = json.loads(written)
        content["messages"] = content["messages"] * times
        return json.dumps(content)

    return text(edit)


SCALARS = {
    "examples 0": scalars(examples=0),
    "examples negative": scalars(examples=-11),
    "examples a fraction": scalars(examples=10.5),
    "examples true": scalars(examples=True),
    "examples text": scalars(examples="11"),
    "examples null": scalars(examples=None),
    "examples 10^12": scalars(examples=10**12),
    "examples 10^400": scalars(examples=HUGE),
    "metrics null": scalars(metrics=None),
    "metrics a list": scalars(metrics=[1, 2]),
    "a metric null": scalars(metrics={"task": None}),
    "a metric a list": scalars(metrics={"task": [1.0]}),
    "a metric 10^400": scalars(metrics={"task": HUGE}),
    "a metric NaN": scalars(metrics={"task": math.nan}),
    "a metric infinite": scalars(metrics={"task": math.inf}),
    "a metric 1e308": scalars(metrics={"task": 1e308}),
    "a metric true": scalars(metrics={"task": True}),
    "a metric with an escape": scalars(metrics={"\x1b[2J": 1.0}),
    "a metric with a long name": scalars(metrics={"x" * 10**5: 1.0}),
    "many metrics": scalars(metrics={str(i): 1.0 for i in range(5000)}),
    "facts null": scalars(facts=None),
    "facts nested": scalars(facts={"domain": {"a": {"b": 1}}}),
    "another round": scalars(round=7),
    "round 10^400": scalars(round=HUGE),
    "round text": scalars(round="1"),
    "another task": scalars(task="score"),
    "an unknown task": scalars(task="rm -rf"),
    "another client": scalars(client="dark-1"),
    "a client nobody knows": scalars(client="../../etc"),
    "client null": scalars(client=None),
    "kept text": scalars(kept="yes"),
    "kept null": scalars(kept=None),
    "a field that there is not": scalars(admin=True),
    "nested JSON": nested(10**5),
    "no JSON": text(lambda _: "{"),
    "empty text": text(lambda _: ""),
    "a number": text(lambda _: "7"),
    "no messages": text(lambda _: '{"messages": [], "layouts": []}'),
    "two messages": repeated(2),
    "2000 messages": repeated(2000),
}
TRAIN = {
    "facts later": scalars(facts={"domain": "dark"}),
    "more examples": scalars(examples=999),
    "steps -1": scalars(steps=-1),
    "steps 0": scalars(steps=0),
    "steps 10^15": scalars(steps=10**15),
    "steps 10^400": scalars(steps=HUGE),
    "steps a fraction": scalars(steps=1.0),
    "steps null": scalars(steps=None),
    "one step more": scalars(steps=2),
    "shape [0, 2^62, 2^62]": layout([0, 2**62, 2**62]),
    "shape 2^62": layout([2**62]),
    "shape negative": layout([-1, -1]),
    "shape a fraction": layout([2.5]),
    "shape text": layout("x"),
    "another dtype": layout([1], "float64"),
    "an unknown dtype": layout([1], "object"),
    "a dtype that is no dtype": layout([1], "nn"),
    "a block that is missing": lambda u: Envelope(to_envelope([u], {}).text, {}),
    "blocks cut": lambda u: Envelope(
        to_envelope([u], {}).text, {k: v[:8] for k, v in to_envelope([u], {}).blocks.items()}
    ),
    "a missing entry": drop(W),
    "no entries": lambda u: replace(u, shared={}),
    "a strange entry": add("x", torch.ones(1)),
    "an entry of another's name": add("../x", torch.ones(1)),
    "personal entries": add(W, torch.ones(4, 16), "personal"),
    "an entry of another shape": recast(W, lambda v: v[:, :1]),
    "a scalar entry": recast(W, lambda v: v.sum()),
    "an empty entry": recast(W, lambda v: v[:0]),
    "a broadcastable entry": recast("head.bias", lambda v: v[:1]),
    "a transposed entry": recast(W, lambda v: v.T.contiguous()),
    "float64": recast(W, lambda v: v.double()),
    "float16": recast(W, lambda v: v.half()),
    "complex": recast(W, lambda v: v.to(torch.complex64)),
    "integers": recast(W, lambda v: v.int()),
    "NaN": spoil(W, math.nan),
    "infinity": spoil(W, math.inf),
    "minus infinity": spoil("head.bias", -math.inf),
    "3e38": spoil(W, 3e38),
    "1e30": spoil(W, 1e30),
    "1e16": spoil(W, 1e16),
    "all 3e38": recast(W, lambda v: torch.full_like(v, 3e38)),
    "a negative variance": spoil(VAR, -1.0),
    "an infinite variance": spoil(VAR, math.inf),
    "a negative counter": recast(COUNTER, lambda v: v * 0 - 1),
    "a counter at its end": recast(COUNTER, lambda v: v * 0 + 2**63 - 1),
    "a payload of a stranger": add("mixup/x", torch.ones(1), "payload"),
    "a payload without a part": add("x", torch.ones(1), "payload"),
    "17 MiB more": add("mixup/x", torch.empty(17 * 2**20, dtype=torch.uint8), "payload"),
    # well-formed: accepted, and bounded by max_weight
    "the negative": lambda u: replace(
        u, shared={k: v if k.endswith(("_var", "_tracked")) else -v for k, v in u.shared.items()}
    ),
    "a thousandfold": lambda u: replace(
        u, shared={k: v if k.endswith("_tracked") else v * 1000 for k, v in u.shared.items()}
    ),
    "1e14": spoil(W, 1e14),
    "zeros": lambda u: replace(u, shared={k: v * 0 for k, v in u.shared.items()}),
    "a metric 1e29": scalars(metrics={"task": 1e29}),
    "no metrics": scalars(metrics={}),
}
ENROL = {
    "no domain": scalars(facts={}),
    "a domain that is a number": scalars(facts={"domain": 7}),
    "a long domain": scalars(facts={"domain": "d" * 10**5}),
    "a domain with an escape": scalars(facts={"domain": "\x1b[31m"}),
    "another fact": scalars(facts={"domain": "dark", "patients": 7}),
    "10^9 + 1 examples": scalars(examples=10**9 + 1),
    "weights": add(W, torch.ones(4, 16)),
    "payload": add("mixup/x", torch.ones(1), "payload"),
    "10^8 examples": scalars(examples=10**8),  # believed, and bounded by max_weight
}
SCORE = {
    "no numbers": lambda u: replace(u, metrics={}),
    "count negative": metric(test_count=-1.0),
    "count 0": metric(test_count=0.0),
    "validation count 0": metric(val_count=0.0),
    "count a fraction": metric(test_count=3.5),
    "count 1e12": metric(test_count=1e12),
    "more right than there are": metric(test_accuracy=100.1),
    "accuracy negative": metric(test_accuracy=-0.1),
    "accuracy NaN": metric(test_accuracy=math.nan),
    "accuracy missing": lambda u: replace(
        u, metrics={k: v for k, v in u.metrics.items() if k != "test/accuracy"}
    ),
    "loss negative": metric(test_loss=-1.0),
    "loss infinite": metric(test_loss=math.inf),
    "loss 1e308": metric(test_loss=1e308),
    "nll negative": metric(test_nll=-1.0),
    "a measure of nobody": metric(test_beauty=1.0),
    "a split of nobody": metric(train_count=1.0),
    "a cell that is none": metric(**{"test_confusion/a/b": 1.0}),
    "a cell outside": metric(**{"test_confusion/9/9": 1.0}),
    "a cell of three": metric(**{"test_confusion/0/0/0": 1.0}),
    "a cell negative": metric(**{"test_confusion/0/0": -1.0}),
    "a cell in validation": metric(**{"val_confusion/0/0": 1.0}),
    "weights": add(W, torch.ones(1)),
    "payload": add("mixup/x", torch.ones(1), "payload"),
    "perfect": metric(test_accuracy=100.0, val_accuracy=100.0),  # a lie that nobody can tell
}
STATISTICS = {
    "a missing one": drop("block1.1.running_mean"),
    "a negative variance": spoil(VAR, -1e-6),
    "NaN": spoil(VAR, math.nan),
    "3e38": spoil(VAR, 3e38),
    "weights": add(W, torch.ones(4, 16)),
    "a counter at its end": recast(COUNTER, lambda v: v * 0 + 2**62),
    "another shape": recast(VAR, lambda v: v[:1]),
}
DONATE = {
    "a missing one": drop(W, "personal"),
    "another shape": add(W, torch.ones(1), "personal"),
    "NaN": spoil(W, math.nan, "personal"),
    "3e38": spoil(W, 3e38, "personal"),
    "shared entries": add("block1.0.weight", torch.ones(1)),
    "payload": add("mixup/x", torch.ones(1), "payload"),
}
ACCEPTED = {
    "the negative",
    "a thousandfold",
    "1e14",
    "zeros",
    "a metric 1e29",
    "no metrics",
    "10^8 examples",
    "perfect",
    "no domain",
}
HAND_MADE = [
    *(("fedavg", "train", name, {}) for name in SCALARS | TRAIN),
    *(("fednova", "train", name, {}) for name in ("steps 0", "one step more", "steps 10^15")),
    *(("fedavg", "enrol", name, {}) for name in SCALARS | ENROL),
    *(("f2dc", "enrol", name, {"backbone": "cnn"}) for name in ("no domain", "a long domain")),
    *(("fedavg", "score", name, {}) for name in SCORE),
    *(("ditto", "score", name, {}) for name in ("count 0", "more right than there are")),
    *(("f2dc", "assess", name, {"backbone": "cnn"}) for name in SCORE),
    *(("fedavg", "statistics", name, {"bn": "recompute"}) for name in STATISTICS),
    *(("fedper", "donate", name, {"private_at_new_site": "mean"}) for name in DONATE),
]
BY_TASK = {
    "train": SCALARS | TRAIN,
    "enrol": SCALARS | ENROL,
    "score": SCALARS | SCORE,
    "assess": SCALARS | SCORE,
    "statistics": SCALARS | STATISTICS,
    "donate": SCALARS | DONATE,
}


def test_there_are_enough_of_them():
    assert len(HAND_MADE) >= 150
    assert {task for _, task, _, _ in HAND_MADE} | {"talk"} == {*BY_TASK, "talk"}


GROUPS = sorted({(method, task, *changes.items()) for method, task, _, changes in HAND_MADE})


@pytest.mark.parametrize("group", GROUPS, ids=lambda g: "-".join(map(str, g[:2])))
def test_hand_made_replies(playground, group):
    method, task, *changes = group
    field = playground(method, **dict(changes))
    names = [n for m, t, n, c in HAND_MADE if (m, t, *c.items()) == group]
    for name in names:
        found = field.outcome(task, BY_TASK[task][name])
        wanted = "harmless" if name in ACCEPTED else "refused"
        if name == "no domain" and method == "f2dc":
            wanted = "refused"
        assert found == wanted, f"{method}, {task}, {name}: {found}"


def generated(specs, part):
    """Changes of a payload that no declaration allows, for the first entries that it names."""
    yield "undeclared", add(f"{part}/undeclared", torch.ones(1), "payload")
    yield "of a stranger", add("stranger/x", torch.ones(1), "payload")
    shown = [key for key in specs if not key.endswith(f"/{ANY}")]
    for key in shown[:2] + shown[-1:]:
        for what, change in wrong(specs[key], key, fellows(specs, key)):
            yield f"{key} {what}", change


def fellows(specs, key):
    """Whether another entry of the part has a size that the site chooses: then they must agree."""
    owner = key.partition("/")[0]
    chosen = [k for k, spec in specs.items() if any(isinstance(n, Size) for n in spec.shape)]
    return any(k != key and k.startswith(f"{owner}/") for k in chosen)


def wrong(spec: PayloadSpec, key: str, paired: bool):
    """Every way in which one entry can differ from its spec."""
    form = lambda change: recast(key, change, "payload")  # noqa: E731
    yield "missing", drop(key, "payload")
    yield "with a dimension more", form(lambda v: v[None])
    yield "flat", form(lambda v: torch.cat([v.flatten(), v.flatten()[:1]]))
    yield "empty", form(lambda v: v.new_empty((0, *v.shape[1:])) if v.dim() else v.new_empty(0))
    yield "of another dtype", form(lambda v: v.float() if v.dtype is torch.float64 else v.double())
    if any(isinstance(n, Size) for n in spec.shape):
        many = max(n.most for n in spec.shape if isinstance(n, Size)) + 1
        yield "too long", form(lambda v: v[:1].repeat(many, *[1] * (v.dim() - 1)))
        longer = form(lambda v: v[:-1] if len(v) > 1 else v.repeat(2, *[1] * (v.dim() - 1)))
        if paired:
            yield "longer than its fellow", longer
    if spec.dtype.is_floating_point:
        for value in (math.nan, math.inf, 3e38):
            yield f"with {value}", form(lambda v, value=value: torch.full_like(v, value))
    if spec.low is not None:
        yield "below", form(lambda v: torch.full_like(v, spec.low - 1))
    if spec.high is not None:
        yield "above", form(lambda v: torch.full_like(v, 2 * spec.high + 2))


APART = sorted(name for name, entry in METHODS.entries().items() if not entry.build().pools_sites)


@pytest.mark.parametrize("method", APART)
def test_payloads_that_no_part_declares(playground, method):
    changes = {"backbone": "cnn"} if method == "f2dc" else {}
    field = playground(quick(method), **changes)
    parts = [part.name for part in field.server.method.parts] or ["nobody"]
    count = 0
    for task in ("enrol", "train"):
        specs = field.server.uploads[task].specs
        for name, change in generated(specs, parts[0]):
            assert field.outcome(task, change) == "refused", f"{method}, {task}: {name}"
            count += 1
    assert count >= 4


def test_answers_beside_training_are_checked_too(playground):
    field = playground("secure-aggregation")
    name = "secure-aggregation"
    cases = {
        "nothing": lambda u: replace(u, payload={}),
        "one key less": lambda u: replace(u, payload=dict(list(u.payload.items())[1:])),
        "another shape": lambda u: replace(u, payload={k: v[:3] for k, v in u.payload.items()}),
        "floats": lambda u: replace(u, payload={k: v.float() for k, v in u.payload.items()}),
        "zeros": lambda u: replace(u, payload={k: v * 0 for k, v in u.payload.items()}),
        "long": lambda u: replace(u, payload={k: v.repeat(99) for k, v in u.payload.items()}),
        "one more": lambda u: replace(u, payload=u.payload | {f"{name}/x": torch.zeros(3).byte()}),
        "of a stranger": add("mixup/x", torch.ones(1), "payload"),
    } | {key: SCALARS[key] for key in ("metrics null", "examples 10^400", "another round")}
    for what, change in cases.items():
        assert field.outcome("talk", change) == "refused", what


def test_a_masked_vector_of_another_weight_ends_the_run_with_the_names(playground):
    """The sum hides whose it was: there is one line that names everybody, and no traceback."""
    key = "secure-aggregation/masked"
    change = recast(key, lambda v: torch.cat([v[:-1], v[-1:] + 1]), "payload")
    assert playground("secure-aggregation").outcome("train", change) == "ended"
