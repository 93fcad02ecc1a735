"""Fixtures of the integration suites: the command on a catalog of the test's own, and a deployment over one table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from support.command import Command
from support.maintained_table import new_table
from support.pipeline_deployment import Pipeline


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """The ``icekeeper`` command with one local catalog ``C``, and nothing of whoever runs the tests."""
    called = Command(tmp_path, monkeypatch, capsys)
    yield called
    called.catalog.close()


@pytest.fixture
def pipeline(local_catalog: SqlCatalog, tmp_path: Path) -> Pipeline:
    """A deployment whose bucket is a folder, over a local table of five files."""
    table = new_table(local_catalog, tmp_path)
    table.fill(5)
    return Pipeline(table, tmp_path)
