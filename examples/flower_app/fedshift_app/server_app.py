"""The server plays the run that the app's configuration describes."""

from __future__ import annotations

from fedshift.deploy.flower.simulated import play_settings
from fedshift.transports.flower.grid import server_app

app = server_app(play_settings)
