"""What the service checks and reads before it listens: its limits, and the reference for drift.

``fedshift serve`` calls it. What is wrong is said before a port is opened.
"""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from fedshift.base.errors import ConfigError, FedshiftError
from fedshift.experiment.raw import image_files
from fedshift.serve.drift import LEAST, DriftReference, of_training, summaries
from fedshift.serve.predictor import Predictor

MOST = 2000  # images of a reference


@dataclass(frozen=True)
class ServiceLimits:
    """What a request, and all of them together, may take."""

    megabytes: float = 16.0  # of one request's body
    batch: int = 256  # inputs of one request
    queue: int = 64  # requests at work or waiting
    seconds: float = 30.0  # for sending a body, and for the answer
    threads: int = 2


def require_limits(limits: ServiceLimits, drift: float) -> None:
    """Raise unless every limit lets something through."""
    values = {"max_mb": limits.megabytes, "max_batch": limits.batch, "queue": limits.queue,
              "timeout": limits.seconds, "drift": drift}  # fmt: skip
    for name, value in values.items():
        if not value > 0:
            raise ConfigError(f"{name} is {value:g}; it has to be above 0", f"{name}=NUMBER")


def drift_reference(predictor: Predictor, data: Path | None) -> DriftReference | None:
    """Of given data, else of the training rows; None: that of the first inputs."""
    if data is None:
        return of_training(predictor.about)
    if predictor.images:
        files = image_files(data)
        x = predictor.of_images([path.read_bytes() for path in files[:: 1 + len(files) // MOST]])
    else:
        x = predictor.inputs.read(data, predictor.site).numpy()
    if len(x) < LEAST:
        raise ConfigError(f"{data} has {len(x)} inputs; a reference needs {LEAST} or more")
    return DriftReference.of(summaries(x))


def warm(predictor: Predictor) -> None:
    """Predict something made up, so that the first request does not wait for what is loaded late.

    Nothing is counted. What a table needs to know beforehand, such as the site, may be lacking.
    """
    with suppress(FedshiftError):
        if predictor.images:
            held = io.BytesIO()
            Image.new("RGB", (8, 8)).save(held, "PNG")
            x = predictor.of_images([held.getvalue()])
        else:
            x = predictor.of_rows([dict.fromkeys(predictor.columns, "")])
        predictor.answer(x)


def read_token(path: Path | None) -> str | None:
    """The token of a file; at least 16 characters."""
    if path is None:
        return None
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token's file cannot be read ({error})", "token=FILE") from None
    if len(token) < 16:
        raise ConfigError(f"{path} holds {len(token)} characters; a token has 16 or more")
    return token
