"""Import before Flower: no telemetry, no update check, no installing, loopback only.

``transports.flower.grid`` imports it first, and the daemons get ``ENVIRONMENT`` as theirs. Flower
and Ray read these variables when they are imported, so nothing may import them earlier; where that
has happened all the same, the values they have read are corrected below.
"""

from __future__ import annotations

import os
import sys

ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # makes Ray use 127.0.0.1 as its address
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # Ray must not change the accelerators' variables
    "OMP_NUM_THREADS": "1",
}


os.environ.update(ENVIRONMENT)


# Both read the environment when they are imported, which may have been before this module.
for _module, _name, _value in (
    ("flwr.supercore.telemetry", "FLWR_TELEMETRY_ENABLED", "0"),
    ("ray._private.ray_constants", "ENABLE_RAY_CLUSTER", False),
):
    if _module in sys.modules:
        setattr(sys.modules[_module], _name, _value)
