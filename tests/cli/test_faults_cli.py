"""The command line says what to do when a site is lost."""

from __future__ import annotations

import pytest

from fedshift.cli import main

RUN = ["run", "--method", "fedavg", "--scenario", "digits", "--rounds", "1"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--on-loss", "hope"], "on_loss is 'hope'; it takes fail, skip or wait"),
        (["--on-loss", "wait"], "set timeout to the seconds to wait (--timeout SECONDS)"),
        (["--min-sites", "0"], "min_sites is 0"),
    ],
)
def test_a_policy_that_makes_no_sense_is_one_line(options, words, capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main([*RUN, "--out", str(tmp_path / "run"), *options])
    assert ended.value.code == 2
    message = capsys.readouterr().err.strip()
    assert words in message
    assert "\n" not in message
