"""How long a pass may read other tables, also where many of them hang (rule 271)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icekeeper.deletion import other_tables as limited_looks
from icekeeper.deletion.other_tables import LimitedLooks
from icekeeper.errors import StorageError
from icekeeper.machine.clock import in_limited_time
from icekeeper.model import TableName
from icekeeper.state.claims import CutOff
from icekeeper.state.sqlite.store import SqliteStateStore
from support.scans import PreparedCatalog

CATALOG = PreparedCatalog({})
NOW_MS = 1_000_000_000_000


class Looks:
    """Looks under a limit; every one hangs until the time is said to be over."""

    def __init__(self, folder: Path, limit_s: int, patch: pytest.MonkeyPatch) -> None:
        self.state = SqliteStateStore(folder / "state.db")
        self.limits: list[float] = []
        policy = SimpleNamespace(detection_timeout_s=limit_s)
        self.context = cast("Any", SimpleNamespace(state=self.state, policy=policy, clock=lambda: NOW_MS))
        self.looks = LimitedLooks(self.context, CATALOG)
        self.patch = patch

    def hang(self, name: str) -> str:
        def over(work: Callable[[], object], limit_s: float, name: str) -> None:
            self.limits.append(limit_s)
            raise TimeoutError

        with self.patch.context() as patch:
            patch.setattr(limited_looks, "in_limited_time", over)
            with pytest.raises(StorageError) as caught:
                self.looks.look(TableName(("ns",), name), lambda: None)
        return str(caught.value)

    def cuts(self) -> list[CutOff]:
        return list(self.state.cut_offs.of_catalog(CATALOG.name, CATALOG.warehouse))


def test_beside_many_tables_that_hang_the_others_have_a_short_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function ends after 15 minutes; who was given a short time is not taken for one that hangs."""
    looks = Looks(tmp_path, 300, monkeypatch)
    for number in range(20):
        told = looks.hang(f"t{number}")
    assert looks.limits == [300.0] * 16 + [5.0] * 4
    assert told == "ns.t19 is not read: 19 others took too long"
    assert len(looks.cuts()) == 16


def test_a_short_limit_is_no_evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(tmp_path, 59, monkeypatch)
    assert looks.hang("t") == "ns.t is not read: looking at it did not end within detection_timeout_s 59"
    assert looks.cuts() == []


def test_a_table_that_waits_is_not_read_and_one_that_ends_in_time_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(tmp_path, 300, monkeypatch)
    name = TableName(("ns",), "t")
    looks.hang("t")
    again = LimitedLooks(looks.context, CATALOG)
    with pytest.raises(StorageError, match=r"^ns\.t is not read: looking at it .*; it is tried again after "):
        again.look(name, lambda: pytest.fail("it waits"))
    looks.context.clock = lambda: NOW_MS + 3 * 3_600_000
    assert LimitedLooks(looks.context, CATALOG).look(name, lambda: 7) == 7
    assert looks.cuts() == []


@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError("of the store")])
def test_what_the_work_raises_is_raised(error: Exception) -> None:
    def fails() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        in_limited_time(fails, 30, "t")
    assert caught.value is error
