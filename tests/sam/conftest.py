"""These need SAM CLI in an environment of its own, which ``make sam`` makes and names in ``SAM_CLI``."""

from __future__ import annotations

import os

collect_ignore_glob = [] if "SAM_CLI" in os.environ else ["test_*.py"]
