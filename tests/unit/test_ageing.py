"""Tables that had a pass just now do not crowd out those that wait for one, whatever their need."""

from __future__ import annotations

from pathlib import Path

import pytest

from icekeeper.detection.assess import urgency, waited_ms
from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import LastSeen
from support.scans import CountedState, PreparedCatalog, names, scanned, with_uuid
from support.settings import MB, NOW_MS, small_files, table

DAY_MS = 24 * HOUR_MS


@pytest.fixture
def state(tmp_path: Path) -> CountedState:
    return CountedState(tmp_path / "state.db")


def passed(state: CountedState, name: str, ago_ms: int) -> None:
    """A pass over the table ended, and there is work again."""
    identity = TableIdentity("C", "s3://prod-lake/", TableName.parse(f"ns.{name}"), name, "s3://b/t")
    state.remember(identity, LastSeen(snapshot_id=None, fingerprint="", finished_ms=NOW_MS - ago_ms, idle=False))


def test_hopeless_tables_of_great_need_do_not_crowd_out_the_others(state: CountedState) -> None:
    """Each hour three of them are passed over, and need as much as before."""
    hopeless = {f"h{n}": small_files(1000, MB) for n in range(3)}
    catalog = PreparedCatalog(
        {
            f"ns.{name}": with_uuid(table(files), name)
            for name, files in {**hopeless, "needy": small_files(6, MB)}.items()
        }
    )
    for name in hopeless:
        passed(state, name, HOUR_MS)
    passed(state, "needy", 30 * HOUR_MS)
    assert names(scanned(state, catalog, max_jobs_per_detection=3)) == ["ns.h0", "ns.h1", "ns.needy"]  # by need
    assert names(scanned(state, catalog, max_jobs_per_detection=1)) == ["ns.needy"]
    assert names(scanned(state, catalog)) == ["ns.h0", "ns.h1", "ns.h2", "ns.needy"]
    passed(state, "needy", 2 * HOUR_MS)
    assert names(scanned(state, catalog, max_jobs_per_detection=3)) == ["ns.h0", "ns.h1", "ns.h2"]


def test_a_day_of_waiting_outweighs_every_need_and_a_week_is_the_most_that_counts() -> None:
    assert urgency(0.0, DAY_MS) > urgency(0.9999, 0)
    assert urgency(0.2, 23 * HOUR_MS) < urgency(0.9999, HOUR_MS * 6)
    assert urgency(0.5, 7 * DAY_MS) == urgency(0.5, 700 * DAY_MS)


def test_who_never_had_a_pass_waits_since_its_oldest_snapshot() -> None:
    metadata = table(small_files(6, MB))
    (first_ms,) = {one.timestamp_ms for one in metadata.snapshots.values()}
    assert waited_ms(metadata, (), NOW_MS) == NOW_MS - first_ms
    assert waited_ms(metadata, (NOW_MS - 7, NOW_MS - 5), NOW_MS) == 5
    assert waited_ms(metadata, (NOW_MS + 5,), NOW_MS) == 0
