"""Every simulated node is one client of the run's scenario."""

from __future__ import annotations

from fedshift.deploy.flower.simulated import simulated_client, simulated_worker
from fedshift.transports.flower.grid import client_app

app = client_app(simulated_worker, simulated_client)
