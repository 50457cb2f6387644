"""What ``fedshift server run`` asks of the app on the same machine, as a file between them."""

from __future__ import annotations

from pathlib import Path

from fedshift.deploy.places import write_private
from fedshift.errors import RunError
from fedshift.faults import Policy
from fedshift.runs.config import RunConfig
from fedshift.runs.files import read_json
from fedshift.scenario import Frozen


class Request(Frozen):
    """One run over registered sites."""

    config: RunConfig
    path: Path  # the run directory
    expects: Path  # where classes and shape are noted
    nodes: dict[str, int]  # Flower's number of each site: its key proves it, its word does not
    connect: float = 120.0  # seconds for a site to come up
    target: str | None = None  # a folder of unlabelled images here, or "scenario"
    policy: Policy = Policy()  # what to do without a site's answer

    def write(self, path: Path) -> None:
        """For the app to read."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, self.model_dump_json().encode())

    @classmethod
    def read(cls, path: Path) -> Request:
        """Inverse of :meth:`write`."""
        try:
            return cls.model_validate(read_json(path))
        except ValueError as error:
            raise RunError(f"{path} is not a request of this version: {error}") from None
