"""``fedshift serve``: a model behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    model: Annotated[
        Path, typer.Argument(metavar="RUN|MODEL.onnx", help="A run directory or an exported model.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen at.")] = 8000,
    token: Annotated[
        Path | None, typer.Option(help="A file with the token that requests must carry.")
    ] = None,
    site: Annotated[
        str | None, typer.Option(help="Whose own model; default: the model for all.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Data whose inputs today's are compared with, for drift.")
    ] = None,
    drift: Annotated[
        float, typer.Option(help="Shift of the inputs' mean, in deviations, that is an alarm.")
    ] = 0.5,
    max_mb: Annotated[float, typer.Option(help="Megabytes that a request may have.")] = 16.0,
    max_batch: Annotated[int, typer.Option(help="Rows or images that a request may have.")] = 256,
    queue: Annotated[int, typer.Option(help="Requests that may wait; more get 429.")] = 64,
    timeout: Annotated[float, typer.Option(help="Seconds for a body, and for an answer.")] = 30.0,
) -> None:
    """Serve a model over HTTP: /predict, /healthz, /metrics, and a page to try it."""
    from fedshift.base.extras import require

    for module in ("starlette", "uvicorn"):
        require(module, f"the service needs {module}", '"fedshift[serve]"')
    from fedshift.serve.drift import DriftMonitor
    from fedshift.serve.predictor import open_predictor
    from fedshift.serve.service import Service, run_service
    from fedshift.serve.start import (
        ServiceLimits,
        drift_reference,
        read_token,
        require_limits,
        warm,
    )

    limits = ServiceLimits(max_mb, max_batch, queue, timeout)
    require_limits(limits, drift)
    secret = read_token(token)
    predictor = open_predictor(model, site)
    warm(predictor)
    monitor = DriftMonitor(drift_reference(predictor, reference), threshold=drift)
    typer.echo(f"{predictor.about['model']} at http://{host}:{port}/ (Ctrl-C ends it)")
    if secret is None and host not in ("127.0.0.1", "localhost", "::1"):
        typer.echo("note: anybody who reaches this address may ask; --token FILE asks for a token")
    run_service(Service(predictor, limits, monitor, secret), host, port)
