"""The service answers what it understands, refuses the rest in one sentence, and stops cleanly."""

from __future__ import annotations

import asyncio
import base64
import http.client
import io
import json
import math
import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

import fedshift
from fedshift.base.errors import ConfigError
from fedshift.cli import main
from fedshift.serve.drift import DriftMonitor, DriftReference, of_training, summaries
from fedshift.serve.predictor import open_predictor
from fedshift.serve.start import ServiceLimits, drift_reference, read_token, require_limits, warm

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
from fedshift.serve.service import Service, server_of

TOKEN = "sixteen-letters-and-more"


class Served:
    """A service on a free port."""

    def __init__(self, service: Service, port: int) -> None:
        self.service, self.port = service, port

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "", token: str = TOKEN):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Authorization": f"Bearer {token}"} | ({"Content-Type": kind} if kind else {})
        link.request(method, path, body, headers)
        reply = link.getresponse()
        text = reply.read().decode()
        link.close()
        return reply, json.loads(text) if text.startswith("{") else text

    def predict(self, body, kind="application/json", token=TOKEN):
        blob = body if isinstance(body, bytes) else json.dumps(body).encode()
        reply, found = self.ask("POST", "/predict", blob, kind, token)
        return reply.status, found


@contextmanager
def serving(predictor, limits=None, monitor=None):
    service = Service(predictor, limits, monitor, TOKEN)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = server_of(service, "127.0.0.1", port)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield Served(service, port)
    finally:
        server.should_exit = True
        thread.join(20)
        service.pool.shutdown()
    assert not thread.is_alive()


def encoded(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


@pytest.fixture(scope="module")
def served(images):
    limits = ServiceLimits(megabytes=0.05, batch=3, seconds=1.0)
    with serving(open_predictor(images, "dark-0"), limits) as found:
        yield found


@pytest.fixture(scope="module")
def answers(images, tmp_path_factory):
    """An image, and what the model says of its file."""
    blob = encoded(np.random.default_rng(3).integers(0, 256, (12, 10, 3), dtype=np.uint8))
    path = tmp_path_factory.mktemp("image") / "a.png"
    path.write_bytes(blob)
    return blob, fedshift.load_model(images, "dark-0").predict(path)


def test_an_image_is_answered_as_predict_answers_its_file(served, answers):
    blob, expected = answers
    status, found = served.predict(blob, "image/png")
    [one] = found["predictions"]
    assert (status, one["prediction"]) == (200, expected[0])
    np.testing.assert_allclose(list(one["probabilities"].values()), expected.probabilities[0], 1e-5)
    assert one["energy"] == pytest.approx(float(expected.energy[0]), rel=1e-5)
    text = base64.b64encode(blob).decode()
    second = served.predict({"images": [text, text]})[1]["predictions"][1]
    assert (second["id"], second["energy"]) == (2, pytest.approx(one["energy"], rel=1e-5))


def test_what_is_not_understood_is_refused_in_one_sentence(served, answers):
    blob, _ = answers
    cases = [
        (b"no image", "image/png", 422, "image 1 is not an image"),
        (b"", "image/png", 422, "the body is empty"),
        (b"a,b\n1,2\n", "text/csv", 422, "the model takes images"),
        (b"{", "application/json", 422, "the body is no JSON"),
        (b"[" * 40000, "application/json", 422, "the body is no JSON"),
        (b"[]", "application/json", 422, "expected an object with one of"),
        (b'{"images": []}', "application/json", 422, "is not a list with at least one entry"),
        (b'{"images": ["?"]}', "application/json", 422, "images are texts in base64"),
        (b'{"images": [1]}', "application/json", 422, "images are texts in base64"),
        (b'{"inputs": [[1, 2]]}', "application/json", 422, "inputs have shape (1, 2); expected"),
        (b'{"inputs": [1, [2]]}', "application/json", 422, "not nested lists of numbers"),
        (json.dumps({"inputs": [[[[256] * 8] * 8] * 3]}).encode(), "application/json", 422,
         "pixels are whole numbers from 0 to 255"),
        (b'{"rows": [1, 2, 3, 4]}', "application/json", 413, "4 inputs in one request; the limit"),
        (b"0" * 50_001, "image/png", 413, "the body is larger than 0.05 MB"),
        (blob, "multipart/form-data", 415, "content type multipart/form-data; send"),
        (blob, "", 415, "content type none; send application/json"),
    ]  # fmt: skip
    for body, kind, status, told in cases:
        code, found = served.predict(body, kind)
        assert (code, told in found["error"]) == (status, True), (body[:20], found)
    assert served.predict(blob, "image/png", token=TOKEN[1:])[0] == 401
    reply, told = served.ask("GET", "/predict")
    assert (reply.status, reply.getheader("allow")) == (405, "POST")
    assert told["error"].startswith("GET /predict: the service has POST /predict")
    reply, told = served.ask("GET", "/<b>")
    assert (reply.status, reply.getheader("content-type")) == (404, "application/json")
    assert "see /openapi.json" in told["error"]


def test_a_body_that_comes_too_slowly_is_given_up(served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as link:
        head = f"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        link.sendall(f"{head}Content-Type: image/png\r\nContent-Length: 10\r\n\r\nab".encode())
        assert b" 408 " in link.recv(4096).split(b"\r\n")[0]
    assert served.service.waiting == 0


def received(link: socket.socket) -> tuple[bytes, dict[str, str]]:
    """The head and the JSON of one answer; they may come in several pieces."""
    got = b""
    while not got.endswith(b"}"):
        got += link.recv(4096)
    head, _, body = got.partition(b"\r\n\r\n")
    return head, json.loads(body)


def test_a_head_that_comes_too_slowly_is_given_up(served):
    """At once, in part, or after a first request on the same connection."""
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    for before, sent in ((b"", b""), (b"", b"POST /predict HTTP/1.1\r\nHo"), (whole, b"GET /he")):
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as link:
            if before:
                link.sendall(before)
                assert received(link)[1]["status"] == "ok"
            link.sendall(sent)
            head, told = received(link)
            assert head.startswith(b"HTTP/1.1 408 ")
            assert told == {"error": "no whole request within 1 seconds"}
            assert link.recv(1) == b""  # closed
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as link:
        for _ in range(4):  # a connection that is kept and used is not given up
            link.sendall(whole)
            assert b" 200 " in received(link)[0]
            time.sleep(0.4)


def test_health_metrics_page_and_description(served):
    assert served.ask("GET", "/healthz", token="")[1]["status"] == "ok"
    assert served.ask("GET", "/metrics", token="")[0].status == 401
    reply, text = served.ask("GET", "/metrics")
    assert reply.getheader("content-type").startswith("text/plain; version=0.0.4")
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    total = sum(int(v) for k, v in lines.items() if k.startswith("fedshift_requests_total"))
    assert lines["fedshift_request_seconds_count"] == str(total)
    assert lines['fedshift_request_seconds_bucket{le="+Inf"}'] == str(total)
    reply, page = served.ask("GET", "/")
    assert "script-src 'sha256-" in reply.getheader("content-security-policy")
    assert "http://" not in page
    assert "https://" not in page
    assert served.ask("GET", "/openapi.json")[1]["paths"]["/predict"]["post"]["responses"]["429"]


class Slow:
    """A predictor that answers when it is told to."""

    images = True

    def __init__(self) -> None:
        self.about = {"model": "slow", "method": "m", "task": "classification", "shape": [1, 1, 1],
                      "classes": ["<b>"]}  # fmt: skip
        self.go = threading.Event()

    def of_images(self, blobs):
        return np.zeros((len(blobs), 1, 1, 1), np.uint8)

    def answer(self, x):
        assert self.go.wait(20)
        return [{"id": 1, "prediction": "<b>"}] * len(x), []


def test_a_full_queue_refuses_and_requests_under_way_are_answered_at_the_end():
    slow, found = Slow(), []
    limits = ServiceLimits(queue=2, threads=1)
    with serving(slow, limits) as served:
        ask = lambda: found.append(served.predict(b"x", "image/png")[0])  # noqa: E731
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for one in threads:
            one.start()
        while served.service.waiting < 2:
            time.sleep(0.01)
        reply, told = served.ask("POST", "/predict", b"x", "image/png")
        assert (reply.status, reply.getheader("retry-after")) == (429, "1")
        assert "2 requests are waiting" in told["error"]
        assert "&lt;b&gt;" in served.ask("GET", "/")[1]
        threading.Timer(0.3, slow.go.set).start()  # after the server was told to stop
    for one in threads:
        one.join()
    assert found == [200, 200]


def test_an_answer_that_takes_too_long_holds_its_place_until_it_is_there():
    slow = Slow()
    with serving(slow, ServiceLimits(seconds=0.2, threads=1)) as served:
        status, told = served.predict(b"x", "image/png")
        assert (status, "no answer within 0.2 seconds" in told["error"]) == (503, True)
        assert served.service.waiting == 1
        slow.go.set()
        while served.service.waiting:
            time.sleep(0.01)


def test_rows_and_csv_are_answered_as_predict_answers_the_file(table, tmp_path):
    run, raw = table
    expected = fedshift.load_model(run).predict(raw / "east.csv")
    predictor = open_predictor(run)
    found, energies = predictor.answer(predictor.of_csv((raw / "east.csv").read_bytes()))
    assert [one["prediction"] for one in found] == list(expected)
    np.testing.assert_allclose(energies, expected.energy, rtol=1e-5)
    with serving(predictor) as served:
        row = {"age": 50, "lab": 1500, "since": "2020-01-01", "pain": "bad", "ward": "001"}
        assert served.predict({"rows": [row | {"note": "fever"}]})[0] == 200
        status, told = served.predict({"rows": [row]})
        assert (status, "has no column note" in told["error"]) == (422, True)
        given = {"inputs": [[math.nan] * predictor.inputs.shape[0]]}
        status, told = served.predict(given)
        assert (status, "inputs hold NaN, or numbers too large" in told["error"]) == (422, True)
        given["inputs"][0] = [1e300] * predictor.inputs.shape[0]
        assert served.predict(given)[0] == 422
        status, told = served.predict(b"age\n", "text/csv")
        assert (status, told["error"].startswith("the csv has no rows")) == (422, True)
    reference = drift_reference(predictor, None)  # age, lab and since were standardised
    assert reference is not None
    assert (reference.variance.sum(), set(reference.mean)) == (3, {0.0})
    x = predictor.of_csv((raw / "east.csv").read_bytes())
    assert reference.distance(x.mean(0)) < 0.5


class Watched:
    """A predictor that keeps what it was asked."""

    def __init__(self, predictor):
        self.predictor, self.asked = predictor, []

    def __getattr__(self, name):
        return getattr(self.predictor, name)

    def answer(self, x):
        self.asked.append(x.shape)
        return self.predictor.answer(x)


def test_the_model_has_answered_once_before_the_service_listens(table, images, tmp_path):
    for run, site, shape in ((images, "dark-0", (3, 8, 8)), (table[0], None, None)):
        watched = Watched(open_predictor(run, site))
        warm(watched)
        assert watched.asked == [(1, *(shape or watched.inputs.shape))]
    lacking = Watched(open_predictor(table[0]))
    lacking.columns = []  # what a row lacks is said when somebody asks, not before
    warm(lacking)
    assert lacking.asked == []


def test_the_distance_is_the_shift_of_the_mean_in_deviations():
    rng = np.random.default_rng(0)
    known = DriftReference(np.array([1.0, -2.0, 5.0]), np.array([4.0, 0.25, 0.0]))
    assert known.distance(np.array([3.0, -1.0, 9.0])) == pytest.approx(np.sqrt((1 + 4) / 2))
    monitor = DriftMonitor(known, window=50, threshold=0.5)
    monitor.add(rng.normal([1, -2, 5], [2, 0.5, 0], (20, 3)))
    assert monitor.distance is None
    monitor.add(rng.normal([1, -2, 5], [2, 0.5, 0], (80, 3)))
    assert not monitor.alarm
    monitor.add(rng.normal([1 + 2, -2 + 0.5, 5], [2, 0.5, 0], (50, 3)))
    assert monitor.distance == pytest.approx(1, abs=0.3)
    assert monitor.alarm


def test_without_a_reference_the_first_window_is_one():
    monitor = DriftMonitor(window=40)
    monitor.add(np.random.default_rng(0).integers(0, 100, (40, 3, 4, 4), dtype=np.uint8))
    assert monitor.distance is None
    monitor.add(np.random.default_rng(1).integers(100, 200, (40, 3, 4, 4), dtype=np.uint8))
    assert monitor.alarm
    pixels = np.zeros((1, 2, 1, 2), np.uint8)
    pixels[0, 1] = [[0, 255]]
    assert summaries(pixels).tolist() == [[0, 0.5, 0, 0.5]]
    assert of_training({}) is None


def test_what_would_let_nothing_through_is_refused_before_a_port_is_opened(tmp_path):
    with pytest.raises(ConfigError, match="queue is 0; it has to be above 0"):
        require_limits(ServiceLimits(queue=0), 0.5)
    (tmp_path / "token").write_text("short\n")
    with pytest.raises(ConfigError, match="holds 5 characters; a token has 16 or more"):
        read_token(tmp_path / "token")
    with pytest.raises(ConfigError, match="token's file cannot be read"):
        read_token(tmp_path / "none")
    with pytest.raises(ConfigError, match="neither a run directory nor an ONNX file"):
        open_predictor(tmp_path / "none.onnx")


def test_the_command_passes_its_limits_on(images, tmp_path, monkeypatch, capsys):
    seen = []
    monkeypatch.setattr("fedshift.serve.service.run_service", lambda *given: seen.append(given))
    (tmp_path / "token").write_text(TOKEN)
    words = ["--site", "dark-0", "--host", "0.0.0.0", "--port", "9000", "--drift", "0.7"]
    words += ["--max-mb", "1", "--max-batch", "5", "--queue", "3", "--timeout", "2"]
    with pytest.raises(SystemExit) as code:
        main(["serve", str(images), *words])
    [(service, host, port)] = seen
    assert (code.value.code, host, port) == (0, "0.0.0.0", 9000)
    assert service.limits == ServiceLimits(1.0, 5, 3, 2.0)
    assert (service.monitor.threshold, service.token) == (0.7, None)
    assert "anybody who reaches this address may ask" in capsys.readouterr().out
    with pytest.raises(SystemExit) as code:
        main(["serve", str(images), "--token", str(tmp_path / "none")])
    assert (code.value.code, len(seen)) == (2, 1)
