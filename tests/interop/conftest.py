"""The evolved table, compacted once per run and format version."""

from __future__ import annotations

import pytest

from support.compacted import Compacted, compact_evolved


@pytest.fixture(scope="session", params=[1, 2], ids=["v1", "v2"])
def compacted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compacted:
    return compact_evolved(request.param, tmp_path_factory.mktemp(f"evolved-v{request.param}"))
