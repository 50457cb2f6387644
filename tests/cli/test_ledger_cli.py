"""``fedshift ledger RUN``: what left each site, against what the parts declare."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch

from fedshift.base.errors import RunError
from fedshift.base.registry import Entry
from fedshift.cli import main
from fedshift.core.method import Method
from fedshift.core.part import Part
from fedshift.core.payload import PayloadSpec
from fedshift.core.registry import METHODS
from fedshift.runs.what_left import require_declared, what_left
from fedshift.testing import play, start


def command(capsys, *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(args))
    told = capsys.readouterr()
    return stop.value.code or 0, told.out, told.err


def test_every_kind_that_left_is_listed_by_site_and_round(tmp_path, capsys):
    session = play(start("scaffold", path=tmp_path / "run"), 2)
    code, out, _ = command(capsys, "ledger", str(tmp_path / "run"), "--json")
    assert code == 0
    rows = json.loads(out)
    up = [r for r in session.record.ledger if r["direction"] == "up"]
    expected = [
        (r["round"], r["client"], r["task"], k, n) for r in up for k, n in r["kinds"].items()
    ]
    assert [(r["round"], r["client"], r["task"], r["kind"], r["bytes"]) for r in rows] == expected
    told = {r["declared"] for r in rows if r["kind"] == "payload/control-variates"}
    assert told == {"the change of its control variate, a mean of gradients"}
    code, out, _ = command(capsys, "ledger", str(tmp_path / "run"))
    assert code == 0
    assert "payload/control-variates" in out
    assert "dark-0" in out
    assert f"{sum(n for *_, n in expected)} bytes left 4 sites" in out


@dataclass(frozen=True)
class Gossip(Part):
    """Does not say what it shares, and sends it all the same."""

    def uploads(self, model):
        return {"train": {"mean": PayloadSpec((), torch.float64)}}

    def finish(self, client):
        return {"mean": client.site.data.train.labels.double().mean()}


def test_payload_that_nobody_declared_is_an_error(tmp_path, capsys, monkeypatch):
    entry = Entry("gossiping", lambda: Method((Gossip(),)), "")
    monkeypatch.setitem(METHODS._entries, "gossiping", entry)
    play(start("gossiping", path=tmp_path / "run"), 1)
    code, out, err = command(capsys, "ledger", str(tmp_path / "run"))
    assert code == 2
    assert "not declared" in out
    assert "payload/gossip left site dark-0 (8 bytes), and no part declares it" in err


def test_a_privacy_part_and_a_codec_are_declared_by_what_they_are(tmp_path):
    play(start("local-dp[noise=1] + secure-aggregation", path=tmp_path / "a"), 1)
    play(start("fedavg + quantise", path=tmp_path / "b"), 1)
    for path in (tmp_path / "a", tmp_path / "b"):
        left = what_left(path)
        require_declared(left)
        assert any(one.kind.startswith("payload/") for one in left)


def test_a_method_object_is_given_again(tmp_path):
    method = Method((Gossip(),))
    play(start(method, path=tmp_path / "run"), 1)
    with pytest.raises(RunError, match="made from a Method object"):
        what_left(tmp_path / "run")
    with pytest.raises(RunError, match="no part declares it"):
        require_declared(what_left(tmp_path / "run", method))


@pytest.mark.parametrize(
    "line", ["{}", "[]", "null", '{"direction": "up"}', '{"direction": "up", "kinds": 3}']
)
def test_a_damaged_ledger_is_one_line(tmp_path, capsys, line):
    play(start("fedavg", path=tmp_path / "run"), 1)
    (tmp_path / "run" / "ledger.jsonl").write_text(line + "\n")
    code, _, err = command(capsys, "ledger", str(tmp_path / "run"))
    assert code == 2
    assert "damaged" in err
    assert len(err.strip().splitlines()) == 1


def test_a_folder_without_a_run_is_one_line(tmp_path, capsys):
    code, _, err = command(capsys, "ledger", str(tmp_path / "nowhere"))
    assert (code, len(err.strip().splitlines())) == (2, 1)
    play(start("fedavg", path=tmp_path / "run"), 1)
    (tmp_path / "run" / "ledger.jsonl").unlink()
    code, _, err = command(capsys, "ledger", str(tmp_path / "run"))
    assert "no round of it is finished" in err


def test_names_cannot_move_the_cursor(tmp_path, capsys):
    play(start("fedavg", path=tmp_path / "run"), 1)
    file = tmp_path / "run" / "ledger.jsonl"
    file.write_text(file.read_text().replace("dark-0", "\\u001b[31mred"))
    _, out, _ = command(capsys, "ledger", str(tmp_path / "run"))
    assert "\x1b" not in out
    assert "[31mred" in out
