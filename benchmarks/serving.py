"""How many clients a served model stands: 50 that ask without pause, for five minutes.

    python benchmarks/serving.py                         # 50 clients, 300 s
    python benchmarks/serving.py --clients 10 --seconds 30

A digits run is trained for one round, exported to ONNX and served by ``fedshift serve`` in its own
process; each client keeps one connection and posts one PNG after another. Told are answers by
status, requests a second, latencies, the service's memory after a tenth of the time and at the end,
and the ratio of its throughput to a bare onnxruntime loop over the same images, one by one, which
decodes, prepares and serves nothing. Client and service share the machine.
"""

from __future__ import annotations

import argparse
import http.client
import io
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

import fedshift
from fedshift.data.library.embedded import embedded_digits

PORT = 8931
IMAGES = 64


def main() -> None:
    """Train, export, serve, ask, and print."""
    told = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    told.add_argument("--clients", type=int, default=50)
    told.add_argument("--seconds", type=float, default=300)
    args = told.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.onnx"
        run = fedshift.run("fedavg", rounds=1, out=Path(folder) / "run", quiet=True)
        fedshift.export(run, model, "onnx")
        pictures = digits()
        service = subprocess.Popen(
            [sys.executable, "-m", "fedshift", "serve", str(model), "--port", str(PORT)],
            stdout=subprocess.DEVNULL,
        )
        try:
            wait(service)
            asked(pictures, args.clients, args.seconds, service.pid, bare(model, pictures))
        finally:
            service.send_signal(signal.SIGTERM)
            print(f"after SIGTERM the service ended with code {service.wait(30)}")


def digits() -> list[np.ndarray]:
    """Images of one look, (H, W, C) of bytes."""
    return list(embedded_digits()["scan"].x[:IMAGES].numpy())


def png(picture: np.ndarray) -> bytes:
    """As a file."""
    held = io.BytesIO()
    Image.fromarray(picture).save(held, "png")
    return held.getvalue()


def bare(model: Path, pictures: list[np.ndarray], seconds: float = 5.0) -> float:
    """Images a second of onnxruntime alone, one thread, one image at a time."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options)
    name = session.get_inputs()[0].name
    ready = [p.transpose(2, 0, 1)[None] for p in pictures]
    count, began = 0, time.monotonic()
    while (spent := time.monotonic() - began) < seconds:
        session.run(None, {name: ready[count % len(ready)]})
        count += 1
    return count / spent


def wait(service: subprocess.Popen[bytes]) -> None:
    """Until the service is well."""
    for _ in range(300):
        assert service.poll() is None, "the service did not start"
        try:
            talk = http.client.HTTPConnection("127.0.0.1", PORT, timeout=2)
            talk.request("GET", "/healthz")
            if talk.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the service was not well after a minute")


def memory(pid: int) -> float:
    """Resident megabytes of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) / 1024


def asked(pictures: list[np.ndarray], clients: int, seconds: float, pid: int, alone: float) -> None:
    """Let clients ask, then print what they saw."""
    files = [png(p) for p in pictures]
    ends = time.monotonic() + seconds
    statuses: Counter[str] = Counter()
    times: list[float] = []
    lock = threading.Lock()

    def client(number: int) -> None:
        talk = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
        mine: list[float] = []
        seen: Counter[str] = Counter()
        at = number
        while time.monotonic() < ends:
            began = time.monotonic()
            try:
                talk.request(
                    "POST", "/predict", files[at % len(files)], {"Content-Type": "image/png"}
                )
                answer = talk.getresponse()
                answer.read()
                seen[str(answer.status)] += 1
            except (OSError, http.client.HTTPException) as error:
                seen[type(error).__name__] += 1
                talk.close()
            mine.append(time.monotonic() - began)
            at += 1
        with lock:
            statuses.update(seen)
            times.extend(mine)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    time.sleep(seconds / 10)
    early = memory(pid)
    for thread in threads:
        thread.join()
    late = memory(pid)
    cuts = statistics.quantiles(times, n=100)
    rate = len(times) / seconds
    print(f"{clients} clients, {seconds:.0f} s: {len(times)} requests, answers {dict(statuses)}")
    print(f"{rate:.0f} requests a second; p50 {1e3 * cuts[49]:.0f} ms, p99 {1e3 * cuts[98]:.0f} ms")
    print(
        f"memory of the service {early:.0f} MB after a tenth of the time, {late:.0f} MB at the end"
    )
    print(
        f"onnxruntime alone {alone:.0f} images a second: the service has {rate / alone:.2f} of it"
    )


if __name__ == "__main__":
    main()
