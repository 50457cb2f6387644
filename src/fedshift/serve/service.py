"""A small HTTP service around one model: predictions, health, metrics, a page to try it.

``fedshift serve`` runs it. Requests wait in a bounded queue for a few worker threads; whatever is
too large, too slow, too much or not understood is answered with 4xx and one sentence. No input is
kept or logged. Starlette and uvicorn (extra ``serve``) are imported only here.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fedshift.base.errors import ConfigError, FedshiftError
from fedshift.serve.drift import DriftMonitor
from fedshift.serve.metrics import ServiceMetrics
from fedshift.serve.page import CSP, openapi, page
from fedshift.serve.patience import patient
from fedshift.serve.predictor import Array, Predictor
from fedshift.serve.start import ServiceLimits

Endpoint = Callable[[Request], Awaitable[Response]]


class Refused(Exception):  # noqa: N818  an answer, not an error of ours
    """A request that gets a status and a sentence instead of a prediction."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Service:
    """The endpoints, and what they share."""

    def __init__(
        self,
        predictor: Predictor,
        limits: ServiceLimits | None = None,
        monitor: DriftMonitor | None = None,
        token: str | None = None,
    ) -> None:
        self.predictor, self.limits = predictor, limits or ServiceLimits()
        self.monitor, self.token = monitor or DriftMonitor(), token
        self.metrics = ServiceMetrics()
        self.waiting = 0  # requests at work or waiting; touched by the event loop alone
        self.pool = ThreadPoolExecutor(self.limits.threads, "predict")

    def app(self) -> Starlette:
        """The application."""
        routes = [
            Route("/", self._page),
            Route("/healthz", self._health),
            Route("/openapi.json", self._openapi),
            Route("/metrics", self._guarded(self._metrics)),
            Route("/predict", self._guarded(self._predict), methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers={HTTPException: nothing_there})

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        """Ask for the token, count the request, and turn refusals into answers."""

        async def answer(request: Request) -> Response:
            start = time.perf_counter()
            try:
                self._authorise(request)
                response = await endpoint(request)
            except Refused as refused:
                response = JSONResponse({"error": str(refused)}, refused.status)
                if refused.status == 429:
                    response.headers["Retry-After"] = "1"
            self.metrics.note(response.status_code, time.perf_counter() - start)
            return response

        return answer

    def _authorise(self, request: Request) -> None:
        if self.token is None:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise Refused(401, "the token is missing or wrong; send Authorization: Bearer TOKEN")

    async def _page(self, _request: Request) -> Response:
        text = page(self.predictor.about, token=self.token is not None)
        return HTMLResponse(text, headers={"Content-Security-Policy": CSP})

    async def _openapi(self, _request: Request) -> Response:
        return JSONResponse(openapi(self.predictor.about))

    async def _health(self, _request: Request) -> Response:
        about = self.predictor.about
        return JSONResponse({"status": "ok", "model": about["model"], "method": about["method"]})

    async def _metrics(self, _request: Request) -> Response:
        gauges = {
            "fedshift_requests_waiting": ("Requests at work or waiting.", float(self.waiting)),
            "fedshift_drift_alarm": (
                "1 if the inputs' distance is above the threshold.", float(self.monitor.alarm),
            ),
        }  # fmt: skip
        if (found := self.monitor.distance) is not None:
            told = "Shift of the inputs' mean from the reference, in deviations."
            gauges["fedshift_drift_distance"] = (told, found)
        return PlainTextResponse(self.metrics.text(gauges), media_type="text/plain; version=0.0.4")

    async def _predict(self, request: Request) -> Response:
        if self.waiting >= self.limits.queue:
            raise Refused(429, f"{self.waiting} requests are waiting; try again in a second")
        self.waiting += 1
        handed = False
        try:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            read = self._reader(kind)
            body = await self._body(request)
            job = asyncio.get_running_loop().run_in_executor(self.pool, self._work, read, body)
            job.add_done_callback(self._done)  # a slow answer holds its place until it is there
            handed = True
            found = await asyncio.wait_for(asyncio.shield(job), self.limits.seconds)
        except TimeoutError:
            why = f"no answer within {self.limits.seconds:g} seconds; send fewer inputs"
            raise Refused(503, why) from None
        finally:
            self.waiting -= not handed
        return JSONResponse({"model": self.predictor.about["model"], "predictions": found})

    def _done(self, job: asyncio.Future[Any]) -> None:
        self.waiting -= 1
        if not job.cancelled():
            job.exception()  # nobody may be waiting for it any more

    async def _body(self, request: Request) -> bytes:
        """The body, if it is small enough and comes soon enough."""
        most = int(self.limits.megabytes * 1e6)
        told = request.headers.get("content-length", "")
        parts, size = [], int(told) if told.isdecimal() else 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                if size <= most:
                    size = 0
                    async for part in request.stream():
                        parts.append(part)
                        size += len(part)
                        if size > most:
                            break
        except TimeoutError:
            raise Refused(408, f"the body took more than {self.limits.seconds:g} seconds") from None
        except ClientDisconnect:
            raise Refused(400, "the connection was closed before the body was there") from None
        if size > most:
            raise Refused(413, f"the body is larger than {self.limits.megabytes:g} MB")
        return b"".join(parts)

    def _reader(self, kind: str) -> Callable[[bytes], Array]:
        if kind == "application/json":
            return self._of_json
        if kind == "text/csv":
            return self.predictor.of_csv
        if kind.startswith("image/"):
            return lambda blob: self.predictor.of_images([blob])
        told = kind or "none"
        raise Refused(415, f"content type {told}; send application/json, text/csv or image/*")

    def _of_json(self, blob: bytes) -> Array:
        try:
            given = json.loads(blob)
        except (ValueError, RecursionError):
            raise Refused(422, "the body is no JSON") from None
        kinds = {"rows", "images", "inputs"}
        if not isinstance(given, dict) or len(found := kinds & given.keys()) != 1:
            raise Refused(422, 'expected an object with one of "rows", "images" or "inputs"')
        [kind] = found
        values = given[kind]
        if not isinstance(values, list) or not values:
            raise Refused(422, f'"{kind}" is not a list with at least one entry')
        self._require_batch(len(values))
        if kind == "rows":
            return self.predictor.of_rows(values)
        return self.predictor.of_numbers(values) if kind == "inputs" else self._of_base64(values)

    def _of_base64(self, values: list[Any]) -> Array:
        try:
            return self.predictor.of_images([base64.b64decode(v, validate=True) for v in values])
        except (binascii.Error, TypeError, ValueError):
            raise Refused(422, "images are texts in base64") from None

    def _require_batch(self, inputs: int) -> None:
        if inputs > self.limits.batch:
            raise Refused(413, f"{inputs} inputs in one request; the limit is {self.limits.batch}")

    def _work(self, read: Callable[[bytes], Array], body: bytes) -> list[dict[str, Any]]:
        """In a worker thread: read, predict, note."""
        if not body:
            raise Refused(422, "the body is empty")
        try:
            x = read(body)
        except FedshiftError as error:
            raise Refused(422, " ".join(str(error).split())) from None
        self._require_batch(len(x))
        answers, energies = self.predictor.answer(np.ascontiguousarray(x))
        self.monitor.add(x)
        self.metrics.predicted(len(x), energies)
        return answers


async def nothing_there(request: Request, error: Exception) -> Response:
    """Answer to another path or verb than those of the service."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    told = f"{request.method} {request.url.path}: the service has POST /predict, GET / and others"
    told += ", see /openapi.json"
    return JSONResponse({"error": told}, status, getattr(error, "headers", None))


def server_of(service: Service, host: str, port: int) -> uvicorn.Server:
    """A server for the service, with its limits; it does not listen yet."""
    config = uvicorn.Config(
        service.app(),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        ws="none",
        server_header=False,
        http=patient(service.limits.seconds),
        timeout_keep_alive=5,
        timeout_graceful_shutdown=int(service.limits.seconds) + 1,
        limit_concurrency=4 * service.limits.queue,
    )
    return uvicorn.Server(config)


def run_service(service: Service, host: str, port: int) -> None:
    """Serve until the process is told to stop; requests that are at work are still answered."""
    server = server_of(service, host, port)
    try:
        server.run()
    except KeyboardInterrupt:  # uvicorn passes the signal on once everything is closed
        pass
    finally:
        service.pool.shutdown(wait=False, cancel_futures=True)
    if not server.started:
        raise ConfigError(f"{host}:{port} cannot be used; choose another port", "port=NUMBER")
