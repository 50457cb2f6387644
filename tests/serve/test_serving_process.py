"""The service as a process: a page in a real browser, and an end while it is busy."""

from __future__ import annotations

import http.client
import io
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter

import numpy as np
import pytest
from PIL import Image

import fedshift

pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def picture() -> bytes:
    pixels = np.random.default_rng(5).integers(0, 256, (30, 20, 3), dtype=np.uint8)
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, "PNG")
    return held.getvalue()


@pytest.fixture(scope="module")
def service(images, tmp_path_factory):
    """An exported model behind ``fedshift serve``; the last test ends it."""
    model = tmp_path_factory.mktemp("served") / "model.onnx"
    fedshift.export(images, model, site="dark-0")
    port = free_port()
    command = [sys.executable, "-m", "fedshift", "serve", str(model), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    for _ in range(600):
        assert process.poll() is None, process.stderr.read()
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.1)
    yield process, port
    process.kill()
    process.wait()
    process.stderr.close()


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: apt-get install chromium")
def test_a_person_uploads_an_image_in_a_browser_and_sees_the_prediction(
    service, picture, images, tmp_path
):
    playwright = pytest.importorskip("playwright.sync_api")
    (tmp_path / "a.png").write_bytes(picture)
    (tmp_path / "none.png").write_text("no image")
    found = fedshift.load_model(images, "dark-0").predict(tmp_path / "a.png")
    share = 100 * float(found.probabilities.max())
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        asked, wrong = [], []
        page.on("request", lambda one: asked.append(one.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"http://127.0.0.1:{service[1]}/")
        answers = []
        for name in ("a.png", "none.png"):
            page.set_input_files("#file", tmp_path / name)
            page.click("button")
            page.wait_for_function("t => !['…', t].includes(answer.textContent)",
                                   arg=answers[-1] if answers else "")  # fmt: skip
            answers.append(page.inner_text("#answer"))
            if name == "a.png":
                page.wait_for_function("document.images[0].naturalWidth === 20")
        browser.close()
    assert answers[0].startswith(f"1: {found[0]}   {found[0]} {share:.1f} %, ")
    assert f"energy {float(found.energy[0]):.3f}" in answers[0]
    assert answers[1] == "image 1 is not an image"
    assert wrong == []
    home = f"http://127.0.0.1:{service[1]}/"
    assert [url for url in asked if not url.startswith((home, f"blob:{home}"))] == []


def test_the_process_ends_cleanly_while_clients_ask(service, picture):
    """Whoever is being answered gets the answer; nobody gets half of one, or an error of ours."""
    process, port = service
    seen: Counter[object] = Counter()

    def ask() -> None:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        while True:
            try:
                link.request("POST", "/predict", picture, {"Content-Type": "image/png"})
                reply = link.getresponse()
                assert reply.read().endswith(b"]}")
                seen[reply.status] += 1
            except ConnectionRefusedError:
                return
            except (ConnectionError, http.client.RemoteDisconnected):  # between two requests
                link.close()

    clients = [threading.Thread(target=ask) for _ in range(8)]
    for one in clients:
        one.start()
    while seen[200] < 40:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    for one in clients:
        one.join(30)
        assert not one.is_alive()
    assert set(seen) == {200}
    assert process.stderr.read() == b""
