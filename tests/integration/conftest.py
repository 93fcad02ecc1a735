"""Fixtures of the integration suites: the command on a catalog of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.command import Command


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """The ``icekeeper`` command with one local catalog ``C``, and nothing of whoever runs the tests."""
    called = Command(tmp_path, monkeypatch, capsys)
    yield called
    called.catalog.close()
