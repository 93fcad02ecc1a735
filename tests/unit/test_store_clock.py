"""The time by a store's responses, and impossible ages
(rule: age-by-store-clock, orphans-outlive-the-grace-period)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from icekeeper.errors import StorageError
from icekeeper.machine.clock import ServerClock, ahead_ms, system_clock
from icekeeper.operations.orphans.inventory import file_rows
from icekeeper.storage.storage import Storage, store_now_ms

# Unusual times of stores: an impossible time is an unknown age, and no file counts as older than it is
# (rule: age-by-store-clock, orphans-outlive-the-grace-period).

PROPERTIES = {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key-id": "a", "s3.secret-access-key": "b"}
# 2026-11-20T00:00:00Z
THEN_MS = 1_795_132_800_000
LISTED = (
    b"<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>t/a</Key><Size>1</Size>"
    b"<LastModified>%s</LastModified></Contents></ListBucketResult>"
)


@pytest.fixture(params=["UTC", "JST-9", "PST8"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's time zone is east and west of Greenwich."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def ages_of(last_modified: str) -> set[int | None]:
    """The age of an object by a listing and by a request for the object."""

    def answer(event_name: str, **_: Any) -> AWSResponse:
        is_list = event_name.endswith("ListObjectsV2")
        headers = {} if is_list else {"ETag": "1", "Content-Length": "1", "Last-Modified": last_modified}
        found = AWSResponse("http://127.0.0.1:1", 200, headers, None)
        found._content = LISTED % last_modified.encode() if is_list else b""
        return found

    storage = Storage({**PROPERTIES, "s3.region": "us-east-1"})
    storage.s3.meta.events.register("before-send.s3", answer)
    looked_at = storage.status("s3://bucket/t/a")
    return {item.modified_ms for item in (*storage.list("s3://bucket/t"), looked_at) if item is not None}


@pytest.mark.parametrize(
    "nothing", ["1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "1601-01-01T00:00:00Z", "0", "never", ""]
)
def test_an_impossible_time_is_an_unknown_age(nothing: str) -> None:
    assert ages_of(nothing) == {None}


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    ("text", "past_ms"),
    [("2026-11-20T00:00:00", 0), ("2026-11-20T00:00:00.123", 123), ("Fri, 20 Nov 2026 00:00:00 GMT", 0)],
)
def test_a_time_without_a_zone_is_utc(text: str, past_ms: int) -> None:
    assert ages_of(text) == {THEN_MS + past_ms}


@pytest.mark.usefixtures("zone")
def test_a_date_without_a_zone_is_gmt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icekeeper.machine.clock.steady_s", lambda: 1.0)
    for date in ("Fri, 20 Nov 2026 00:00:00", "Fri, 20 Nov 2026 00:00:00 GMT"):
        clock = ServerClock()
        clock.hear(date)
        assert clock.now_ms() == THEN_MS


def test_a_local_file_or_an_inventory_line_of_1970_has_no_age(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    storage = Storage({})
    for at_s, age_ms in ((0, None), (-1, None), (1, 1000)):
        os.utime(tmp_path / "a", (at_s, at_s))
        looked_at = storage.status(f"{tmp_path}/a")
        found = (*storage.list(str(tmp_path)), *storage.list_folder(str(tmp_path)), looked_at)
        assert [item.modified_ms for item in found if item is not None] == [age_ms] * 3
    (tmp_path / "report.csv").write_text("path,size,last_modified_date\ns3://b/a,1,1970-01-01T00:00:00.000Z\n")
    rows = file_rows(storage, f"{tmp_path}/report.csv", "s3://b")
    assert [item.modified_ms for item in rows] == [None]


# The time by a server's responses, and the difference of our clock.


def test_a_date_header_sets_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, steady = ServerClock(), [100.0]
    monkeypatch.setattr("icekeeper.machine.clock.steady_s", lambda: steady[0])
    for nothing in (None, "", "tomorrow", "Sun, 99 Nov 1994 08:49:37 GMT"):
        if nothing is not None:
            clock.hear(nothing)
        assert clock.now_ms() is None
    clock.hear("Sun, 06 Nov 1994 08:49:37 GMT")  # the example of RFC 9110, 5.6.7
    assert clock.now_ms() == 784_111_777_000
    steady[0] += 2.5
    assert clock.now_ms() == 784_111_779_500


@pytest.mark.parametrize(
    ("ours_ms", "theirs_ms", "expected"),
    [(10_000, None, 0), (10_000, 8_000, 0), (8_000, 10_000, 0), (10_001, 8_000, 2_001), (8_000, 10_001, -2_001)],
)
def test_a_difference_below_the_precision_of_a_date_header_is_ignored(
    ours_ms: int, theirs_ms: int | None, expected: int
) -> None:
    assert ahead_ms(ours_ms, theirs_ms) == expected


def test_a_file_system_shows_the_time_without_leaving_a_file(tmp_path: Path) -> None:
    before_ns = tmp_path.stat().st_mtime_ns
    found = store_now_ms(Storage({}), tmp_path.as_uri(), False)
    assert found is not None
    assert abs(found - system_clock()) < 2_000
    assert (list(tmp_path.iterdir()), tmp_path.stat().st_mtime_ns) == ([], before_ns)


def test_without_nameless_files_the_time_needs_the_right_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    (tmp_path / "metadata").mkdir()
    assert store_now_ms(Storage({}), str(tmp_path), False) is None
    found = store_now_ms(Storage({}), str(tmp_path), True)
    assert found is not None
    assert abs(found - system_clock()) < 2_000
    assert list((tmp_path / "metadata").iterdir()) == []


def test_a_store_without_a_clock_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store_now_ms(Storage({}), str(tmp_path / "missing"), True) is None
    assert store_now_ms(Storage({}), "gs://bucket/t", True) is None
    monkeypatch.setattr(Storage, "can_list", _unreachable)
    assert store_now_ms(Storage({}), "s3://bucket/t", True) is None


def _unreachable(storage: Storage, location: str) -> bool:
    raise StorageError("nothing answers")
