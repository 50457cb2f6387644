"""The server plays the run that the app's configuration describes."""

from __future__ import annotations

from fedshift.transports.flower import server_app
from fedshift.transports.flower_apps import play_settings

app = server_app(play_settings)
