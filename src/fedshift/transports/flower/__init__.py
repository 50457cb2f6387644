"""Messages by way of Flower. Together with ``deploy.flower`` the only place that imports it."""
