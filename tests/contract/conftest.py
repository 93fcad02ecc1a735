"""Fixtures of the contract suites: AWS as moto plays it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.moto_server import MotoServer, running_moto


@pytest.fixture(scope="session")
def moto_server() -> Iterator[MotoServer]:
    """One server per worker process."""
    with running_moto() as server:
        yield server
