"""What the contract suites of state stores share."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.state_stores import STORES, OpenStore


@pytest.fixture(params=sorted(STORES))
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Opens the same store anew, as another process would."""
    return lambda: STORES[request.param](tmp_path)
