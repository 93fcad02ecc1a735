"""The evolved table, compacted once per run and format version, in the worker that has Spark."""

from __future__ import annotations

import pytest

from support.evolved import Compacted, compact_evolved


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that share these tables in one worker: making them takes longer than most of the tests."""
    for item in items:
        if "compacted" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session", params=[1, 2], ids=["v1", "v2"])
def compacted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compacted:
    return compact_evolved(request.param, tmp_path_factory.mktemp(f"evolved-v{request.param}"))
