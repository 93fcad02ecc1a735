"""These tests need SAM CLI in a separate environment, which ``make sam`` creates and names in ``SAM_CLI``."""

from __future__ import annotations

import os

collect_ignore_glob = [] if "SAM_CLI" in os.environ else ["test_*.py"]
