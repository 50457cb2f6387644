"""The part of deployment that imports Flower: daemons, apps, and the control interface."""
