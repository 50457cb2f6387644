"""Every simulated node is one client of the run's scenario."""

from __future__ import annotations

from fedshift.transports.flower import client_app
from fedshift.transports.flower_apps import simulated_client, simulated_worker

app = client_app(simulated_worker, simulated_client)
