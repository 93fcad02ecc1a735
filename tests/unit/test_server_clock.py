"""What the time is by a server's answers, and how far our clock is ahead of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from icekeeper.errors import StorageError
from icekeeper.machine.clock import ServerClock, ahead_ms, system_clock
from icekeeper.storage.storage import Storage, store_now_ms


def test_a_date_header_tells_the_time_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, steady = ServerClock(), [100.0]
    monkeypatch.setattr("icekeeper.machine.clock.steady_s", lambda: steady[0])
    assert clock.now_ms() is None
    clock.hear("Sun, 06 Nov 1994 08:49:37 GMT")  # the example of RFC 9110, 5.6.7
    assert clock.now_ms() == 784_111_777_000
    steady[0] += 2.5
    assert clock.now_ms() == 784_111_779_500


@pytest.mark.parametrize("nonsense", ["", "tomorrow", "Sun, 99 Nov 1994 08:49:37 GMT"])
def test_what_is_no_date_says_nothing(nonsense: str) -> None:
    clock = ServerClock()
    clock.hear(nonsense)
    assert clock.now_ms() is None


@pytest.mark.parametrize(
    ("ours_ms", "theirs_ms", "expected"),
    [(10_000, None, 0), (10_000, 8_000, 0), (8_000, 10_000, 0), (10_001, 8_000, 2_001), (8_000, 10_001, -2_001)],
)
def test_what_a_date_header_cannot_measure_is_no_difference(ours_ms: int, theirs_ms: int | None, expected: int) -> None:
    assert ahead_ms(ours_ms, theirs_ms) == expected


def test_a_file_system_tells_the_time_without_a_trace(tmp_path: Path) -> None:
    before_ns = tmp_path.stat().st_mtime_ns
    found = store_now_ms(Storage({}), tmp_path.as_uri(), False)
    assert found is not None
    assert abs(found - system_clock()) < 2_000
    assert (list(tmp_path.iterdir()), tmp_path.stat().st_mtime_ns) == ([], before_ns)


def test_where_no_nameless_file_is_possible_only_who_may_write_learns_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    (tmp_path / "metadata").mkdir()
    assert store_now_ms(Storage({}), str(tmp_path), False) is None
    found = store_now_ms(Storage({}), str(tmp_path), True)
    assert found is not None
    assert abs(found - system_clock()) < 2_000
    assert list((tmp_path / "metadata").iterdir()) == []


def test_a_store_that_does_not_tell_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store_now_ms(Storage({}), str(tmp_path / "missing"), True) is None
    assert store_now_ms(Storage({}), "gs://bucket/t", True) is None
    monkeypatch.setattr(Storage, "can_list", _unreachable)
    assert store_now_ms(Storage({}), "s3://bucket/t", True) is None


def _unreachable(storage: Storage, location: str) -> bool:
    raise StorageError("nothing answers")
