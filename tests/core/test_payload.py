"""What a part sends is what it declares: checked where it leaves, and where it arrives."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from fedshift.base.errors import ConfigError, RunError
from fedshift.core.method import Method
from fedshift.core.part import Part
from fedshift.core.payload import (
    ANY,
    LARGEST,
    Declared,
    PayloadSpec,
    Size,
    not_finite,
)
from fedshift.core.registry import METHODS, build
from fedshift.data.samples import split_rows
from fedshift.engine.reply_checks import shown, visit_steps
from fedshift.testing import begin, play, start, tiny_scenario, worker


@dataclass(frozen=True)
class Sends(Part):
    """Sends ``value`` and declares ``spec``."""

    value: torch.Tensor
    spec: PayloadSpec | None
    task: str = "train"

    def uploads(self, model):
        return {} if self.spec is None else {self.task: {"x": self.spec}}

    def enrol(self, client):
        return {"x": self.value} if self.task == "enrol" else {}

    def finish(self, client):
        return {"x": self.value} if self.task == "train" else {}


def sending(value, spec, task="train"):
    return play(start(Method((Sends(value, spec, task),))), 1)


def test_a_declared_payload_travels(replies):
    session = sending(torch.ones(3), PayloadSpec((3,), low=0, high=1))
    assert all(u.payload["sends/x"].sum() == 3 for u in replies(session, 1).values())


@pytest.mark.parametrize("task", ["train", "enrol"])
def test_an_undeclared_payload_is_an_error_that_names_part_key_and_hook(task):
    with pytest.raises(ConfigError, match=r"client \S+, round \d: payload 'sends/x' is not") as e:
        sending(torch.ones(3), None, task)
    assert "declared by sends (its hook uploads)" in str(e.value)


WRONG = {
    "longer": (torch.ones(4), PayloadSpec((3,)), r"has shape \(4,\), not \(3\)"),
    "of more dimensions": (torch.ones(3, 1), PayloadSpec((3,)), r"has shape \(3, 1\)"),
    "beyond a size": (torch.ones(4), PayloadSpec((Size("M", 3),)), r"not \(4?M? ?\(from 1 to 3"),
    "empty": (torch.ones(0), PayloadSpec((Size("M", 3),)), r"\(0,\), not .*from 1 to 3"),
    "of another dtype": (torch.ones(3).double(), PayloadSpec((3,)), r"is torch.float64, not"),
    "below": (torch.tensor([-1.0]), PayloadSpec((1,), low=0), r"has -1, and the least is 0"),
    "above": (torch.tensor([3]), PayloadSpec((1,), torch.int64, high=2), r"has 3, and the most"),
    "a fraction": (torch.tensor([0.5]), PayloadSpec((1,), whole=True), r"has a fraction"),
    "NaN": (torch.tensor([torch.nan]), PayloadSpec((1,)), r"x has a value that is not finite"),
    "huge": (torch.tensor([1e16]), PayloadSpec((1,)), r"x has a norm of 1e\+16"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_payload_unlike_its_declaration_does_not_leave_the_site(case):
    value, spec, reason = WRONG[case]
    if case == "beyond a size":
        reason = r"has shape \(4,\), not .*from 1 to 3"
    with pytest.raises(ConfigError, match=rf"payload sends/x.* {reason}|payload sends/{reason}"):
        sending(value, spec)


@pytest.mark.parametrize("case", WRONG)
def test_nor_does_the_server_take_it(case):
    value, spec, _ = WRONG[case]
    assert Declared(frozenset({"sends"}), {"sends/x": spec}).problem({"sends/x": value})


def test_a_missing_entry_is_named_unless_it_is_optional():
    with pytest.raises(ConfigError, match=r"payload quiet/x is missing"):
        play(start(Method((Quiet(optional=False),))), 1)
    play(start(Method((Quiet(optional=True),))), 1)


@dataclass(frozen=True)
class Quiet(Part):
    optional: bool

    def uploads(self, model):
        return {"train": {"x": PayloadSpec(optional=self.optional)}}


def test_sizes_of_one_name_agree_within_a_part():
    held = Size("M", most=5)
    specs = {
        "p/a": PayloadSpec((held, 2)),
        "p/b": PayloadSpec((held,)),
        "q/c": PayloadSpec((held,)),
    }
    known = Declared(frozenset({"p", "q"}), specs)
    good = {"p/a": torch.ones(3, 2), "p/b": torch.ones(3), "q/c": torch.ones(5)}
    assert known.problem(good) == ""
    assert "p/b has shape (2,)" in known.problem(good | {"p/b": torch.ones(2)})


def test_names_may_be_open():
    known = Declared(frozenset({"p"}), {f"p/{ANY}": PayloadSpec((2,), torch.uint8, high=7)})
    assert known.problem({}) == known.problem({"p/anything": torch.ones(2).byte()}) == ""
    assert "has 9" in known.problem({"p/x": torch.full((2,), 9).byte()})
    assert "belongs to no part" in known.problem({"q/x": torch.ones(2).byte()})
    many = {f"p/{i}": torch.empty(0) for i in range(3)}
    assert "is not" not in Declared(frozenset(), {}).problem({})
    assert known.problem(many)


def test_the_norm_is_what_an_independent_line_says():
    entries = {"a": torch.full((2, 2), 3e14), "b": torch.tensor([4e14], dtype=torch.float64)}
    assert LARGEST > (4 * 3e14**2 + 4e14**2) ** 0.5
    assert not_finite(entries) == ""
    assert "a has a norm of 1.4e+15" in not_finite({"a": torch.full((2, 2), 7e14)})
    assert not_finite({"h": torch.full((64,), 6e4, dtype=torch.float16)}) == ""
    assert not_finite({"n": torch.tensor([2**62])}) == ""


def test_a_declaration_of_another_kind_is_an_error_with_the_parts_name():
    class Odd(Part):
        def uploads(self, model):
            return {"score": {"x": PayloadSpec()}}

    with pytest.raises(ConfigError, match=r"odd.uploads returns 'score'"):
        start(Method((Odd(),)))


DECLARED = Path(__file__).parents[1] / "methods" / "declared"
SENDING = {
    name for path in DECLARED.glob("*.toml") for name in tomllib.loads(path.read_text())["sending"]
}


@pytest.mark.parametrize("method", sorted(METHODS.entries()))
def test_every_registered_method_declares_what_it_sends(method):
    """That nothing else leaves is checked in every visit; here, who declares anything at all."""
    parts = build(method).parts
    declaring = any(type(part).uploads is not Part.uploads for part in parts)
    assert declaring == (method in SENDING)


def test_the_servers_and_the_sites_declarations_are_the_same():
    for method in sorted(SENDING):
        session = begin(method)
        assert worker(session).uploads == session.server.uploads


@pytest.mark.parametrize("size", [1, 2, 4, 7])
def test_steps_of_a_budget_are_the_batches_of_an_epoch(size):
    for examples in range(1, 20):
        batches = len(split_rows(torch.arange(examples), size))
        assert visit_steps(tiny_scenario(batch_size=size, epochs=3), examples) == 3 * batches
        assert visit_steps(tiny_scenario(batch_size=size, steps=5), examples) == 5


def test_a_site_cannot_choose_how_often_its_steps_count():
    """FedNova divides by them: at the claimed 1 of 6 steps an update would count six times."""
    session = start("fednova")
    real = session.transport.deliver

    def lying(messages):
        for reply in real(messages):
            yield replace(reply, steps=1) if reply.task == "train" else reply

    session.transport.deliver = lying
    with pytest.raises(RunError, match=r"steps is 1, and 11 examples take 6"):
        play(session, 1)


def test_anything_can_be_shown():
    assert shown(10**5000) == "a int that cannot be shown"
    assert len(shown("x" * 10**6)) < 110
