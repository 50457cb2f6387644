"""All of deployment that touches Flower: its daemons, its apps, its control interface."""
