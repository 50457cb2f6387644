"""What Flower's processes see: no telemetry, no update check, nothing installed behind our back."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

from fedshift.deploy.places import Place
from fedshift.errors import ConfigError
from fedshift.transports.flower_quiet import ENVIRONMENT

POLL = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5", "PYTHONUNBUFFERED": "1"}


def environment(place: Place) -> dict[str, str]:
    """The environment of a daemon and of everything it starts."""
    own = {"FLWR_HOME": str(place.flower)}
    if not os.environ.get("FEDSHIFT_HOME"):
        own["FEDSHIFT_HOME"] = str(place.cache)
    return {**os.environ, **ENVIRONMENT, **POLL, **own}


def require_flower() -> str:
    """Version of Flower, or how to get it."""
    try:
        return version("flwr")
    except PackageNotFoundError:
        raise ConfigError(
            "deployment needs Flower, which is not installed; pip install 'fedshift[flower]'"
        ) from None
