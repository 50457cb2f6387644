"""The live view's server: what it answers, and whom it refuses."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
from threading import Thread

import pytest
from made_runs import scored, write_run

from fedshift.base.errors import ConfigError, RunError
from fedshift.report.watching import Watched
from fedshift.report.web import LiveView, as_json, changes, read_known


@pytest.fixture
def view(tmp_path, monkeypatch):
    monkeypatch.setattr("fedshift.report.web.LEAST", 0.0)
    write_run(tmp_path / "a", [scored(1, 40.0), scored(2, 50.0)])
    with LiveView([tmp_path]) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(view, path="/runs.json", method="GET", host=None):
    port = view.server_address[1]
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    link.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = link.getresponse()
    body = answer.read()
    link.close()
    return answer, body


def test_only_what_is_new_is_sent(view, tmp_path):
    (run,) = json.loads(ask(view)[1])["runs"]
    assert (run["method"], run["round"], run["id"]) == ("fedavg", 2, 0)
    assert [row[2]["personal"][0] for row in run["rows"]] == [40.0, 50.0]
    with (tmp_path / "a" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(scored(3, 60.0)) + "\n")
    write_run(tmp_path / "b", [])
    found = json.loads(ask(view, "/runs.json?have=0.2.2")[1])["runs"]
    assert [[row[0] for row in run["rows"]] for run in found] == [[3], []]
    assert found[0]["scores"]["personal"]["test"] == 60.0
    (tmp_path / "a" / "summary.json").write_text("{}")
    known = json.loads(ask(view, "/runs.json?have=0.3.3")[1])["runs"]
    assert known[0]["state"] == "finished"
    assert [r["id"] for r in json.loads(ask(view, "/runs.json?have=0.3.3f")[1])["runs"]] == [1]


def test_a_run_that_dropped_rounds_is_sent_whole(tmp_path):
    write_run(tmp_path / "a", [scored(1, 40.0), scored(2, 50.0)])
    run = Watched(tmp_path / "a")
    run.refresh()
    assert changes(run, 0, (1, 1, False))["whole"] is False
    assert len(changes(run, 0, (1, 1, False))["rows"]) == 1
    for known in ((3, 3, False), (2, 7, False)):
        found = changes(run, 0, known)
        assert (found["whole"], len(found["rows"])) == (True, 2)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "", "localhost"]
)
def test_a_request_under_another_name_is_refused(view, host):
    """What DNS rebinding looks like from here."""
    answer, body = ask(view, host=host.format(port=view.server_address[1]) or "x")
    assert answer.status == 403
    assert b"fedavg" not in body


def test_localhost_with_our_port_is_us(view):
    assert ask(view, host=f"localhost:{view.server_address[1]}")[0].status == 200


def test_no_file_is_served_and_nothing_can_be_changed(view):
    for path in (
        "/config.json",
        "/../a/config.json",
        "/a/config.json",
        "//etc/passwd",
        "/%2e%2e/x",
    ):
        assert ask(view, path)[0].status == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask(view, "/", method)[0].status == 501
    for have in ("x", "1.2", "1.2.3x", "9" * 99):
        assert ask(view, f"/runs.json?have={have}")[0].status == 400


def test_it_listens_on_this_machine_only_and_tells_browsers_to_load_nothing(view):
    assert view.server_address[0] == "127.0.0.1"
    answer, body = ask(view, "/")
    assert answer.status == 200
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'; script-src 'sha256-" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "Python" not in answer.headers["Server"]
    assert b"fedavg" not in body.partition(b"<script>")[0]


def test_a_connection_that_says_nothing_keeps_nobody_waiting(view):
    with socket.create_connection(view.server_address):
        assert ask(view)[0].status == 200


def test_a_loss_that_is_not_finite_is_null():
    assert as_json({"a": [float("nan"), 1.0], "b": "x"}) == b'{"a":[null,1.0],"b":"x"}'


def test_what_a_view_has_is_read():
    assert read_known("") == {}
    assert read_known("0.12.24,3.5.5f") == {0: (12, 24, False), 3: (5, 5, True)}


def test_a_port_that_is_taken_and_a_folder_that_is_not_there_are_one_line(view, tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be used: .*; choose another"):
        LiveView([tmp_path], view.server_address[1])
    with pytest.raises(RunError, match="is not a folder"):
        LiveView([tmp_path / "nowhere"])


def test_a_folder_that_is_removed_takes_nobody_down(view, tmp_path):
    ask(view)
    shutil.rmtree(tmp_path / "a")
    assert ask(view)[0].status == 200
