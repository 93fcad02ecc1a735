"""What the contract suites of state stores share."""

from __future__ import annotations

import pytest

from support.state_stores import STORES, OpenStore


@pytest.fixture(params=sorted(STORES))
def open_store(request: pytest.FixtureRequest) -> OpenStore:
    """Opens the same store anew, as another process would."""
    return STORES[request.param](request)
