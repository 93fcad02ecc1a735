"""Records of a fleet in the state, with healthy, neglected, unreadable and hostile tables, for the report page."""

from __future__ import annotations

from random import Random

from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import CatalogId, TableName
from icekeeper.report.page import CatalogFacts
from icekeeper.state.findings import CatalogScan, Part, TableLayout, Verdict
from icekeeper.state.identity import TableIdentity
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.store import PassRecord
from icekeeper.state.trends import TrendRow

NOW_MS = 1_795_800_000_000
DAY_MS = 24 * HOUR_MS
HOSTILE = '</script><script>alert("\'&")</script>\u202e<!--'
"""A name by an attacker, which closes elements, has quotes, and reverses the direction of text."""


def fleet(tables: int, catalog: str = "lake", *, hostile: bool = False) -> CatalogFacts:
    """The facts of a catalog with so many tables, the same for the same arguments."""
    random = Random(7)
    lines = [sorted(random.randint(0, 30 * 86_400) for _ in range(40)) for _ in range(9)]
    partitions = [_partitions(random) for _ in range(9)]
    lake, passes, found, trends = [], {}, [], {}
    names = [f"{('shop', 'web', 'finance', 'iot')[n % 4]}.events_{n:05}" for n in range(tables)]
    if hostile:
        names[0] = f"evil.{HOSTILE.replace('.', '')}"
    for number, name in enumerate(names):
        identity = TableIdentity(CatalogId(catalog, "w"), TableName.recorded(name), f"u{number}", f"s3://b/t{number}")
        stats = _stats(identity, random, number, lines[number % 9], text=HOSTILE if hostile and number == 0 else "")
        lake.append(stats)
        if number % 3 != 2:
            passes[identity.copy] = (_last_pass(identity, random, number, HOSTILE if hostile and number == 0 else ""),)
        if number % 2 == 0:
            trends[identity.copy] = [
                TrendRow(
                    observed_ms=NOW_MS - day * DAY_MS, data_files=random.randint(1, 99), delete_files=day, bytes=2**30
                )
                for day in range(30, 0, -1)
            ]
        if number % 5 == 0:
            found.extend(_layout(stats, random, number, partitions[number % 9]))
        if number % 97 == 96:
            gone = Verdict(left_alone=f"metadata file s3://b/t{number}/v9.json is missing", is_unread=True)
            unread = TableIdentity(CatalogId(catalog, "w"), identity.table, "")
            lake.append(LakeStats(identity=unread, observed_ms=NOW_MS, snapshot_id=None, counters={}, verdict=gone))
    scan = CatalogScan(
        catalog=CatalogId(catalog, "w"), scanned_ms=NOW_MS - HOUR_MS, listed=tables, scanned=tables - tables // 97
    )
    return CatalogFacts(catalog=catalog, scan=scan, lake=lake, layouts=found, passes=passes, trends=trends)


def _stats(identity: TableIdentity, random: Random, number: int, seconds: list[int], text: str) -> LakeStats:
    files, size = random.randint(3, 9000), random.randint(2**20, 2**41)
    deletes = random.randint(1, 80) if number % 4 == 0 else 0
    counters: dict[str, int | float] = {
        "lake_snapshots": random.randint(40, 400),
        "lake_refs": 1 + number % 3,
        "lake_oldest_snapshot_age_hours": round(random.uniform(1, 400), 1),
        "lake_data_files": files,
        "lake_delete_files": deletes,
        "lake_position_deletes": deletes * 1000,
        "lake_equality_deletes": 0,
        "lake_records": files * 10_000,
        "lake_bytes": size,
        "lake_average_file_bytes": size // (files + deletes),
        "lake_history_bytes": size // 3,
        "lake_manifests": random.randint(1, 300),
        **({"lake_clustering_depth": 3.25} if number % 6 == 0 else {}),
    }
    due = number % 7 == 1 or bool(text)
    reasons = (text or f"{files} data files of 3 MB on average are below 192 MB", "60 manifests reach 5") if due else ()
    day = 2**62 if text else NOW_MS - 31 * DAY_MS  # the former is outside every calendar
    refs = [["main", "branch", day + seconds[-1] * 1000], [text or "audit", "tag", day + seconds[9] * 1000]]
    return LakeStats(
        identity=identity,
        observed_ms=NOW_MS - number % 50 * HOUR_MS,
        snapshot_id=2**62 + number,
        counters=counters,
        warnings={"small_files": text or "small files"} if due else {},
        policy={"target_file_size_mb": {"source": text or "table property write.target-file-size-bytes", "value": 128}},
        verdict=Verdict(
            reasons=reasons,
            priority=0.9 - number % 13 / 100 if due else 0.0,
            left_alone="" if due else "no sign of work",
            sweep_due_ms=NOW_MS + number % 24 * HOUR_MS,
        ),
        timeline={"from_ms": day, "seconds": seconds, "operations": "aaroaaraaa" * 4, "refs": refs},
    )


def _last_pass(identity: TableIdentity, random: Random, number: int, text: str) -> PassRecord:
    merged, written = random.randint(10, 500), random.randint(1, 9)
    summary = f"compact: compacted {merged} files into {written}; expire_snapshots: expired 14 snapshots; "
    ended_ms = NOW_MS - random.randint(1, 60) * HOUR_MS
    return PassRecord(
        identity=identity,
        run_id="r",
        started_ms=ended_ms - random.randint(900, 90_000),
        finished_ms=ended_ms,
        status="partial" if number % 61 == 5 or text else "succeeded",
        summary=summary + (text or "remove_orphans: removed 3 orphan file(s)"),
        metrics={
            "compact.files_merged": merged,
            "compact.files_written": written,
            "expire_snapshots.snapshots_expired": 14,
            "remove_orphans.orphans_removed": 3,
            "remove_orphans.bytes_freed": 3 * 2**27,
            "remove_orphans.bytes_left": 2**20,
        },
        engine="local",
    )


def _partitions(random: Random) -> list[list[object]]:
    days = [f"day=2026-{1 + n // 28:02}-{1 + n % 28:02}" for n in range(96)]
    return [[day, random.randint(1, 60), random.randint(2**20, 2**33), n % 3] for n, day in enumerate(days)]


def _layout(stats: LakeStats, random: Random, number: int, partitions: list[list[object]]) -> list[TableLayout]:
    sizes = [[power, random.randint(1, 900), 3 * 2**power] for power in range(14, 29)]
    times = [stats.timeline["from_ms"] + seconds * 1000 for seconds in stats.timeline["seconds"]]
    files = {"sizes": sizes, "partitions": partitions, "partition_count": 365}
    holders = {
        "refs": [["main", "branch", 40, 3 * 2**30], ["audit", "tag", 1, 5 * 2**20]],
        "snapshots": [[at_ms, random.randint(0, 2**31)] for at_ms in times],
        "advice": [
            {
                "reason": f"{number} files stand in 365 partitions",
                "gain": "fewer files",
                "statement": f"ALTER TABLE {stats.identity.table} REPLACE PARTITION FIELD day WITH months(at)",
            }
        ],
    }
    return [
        TableLayout(identity=stats.identity, observed_ms=NOW_MS - 5 * HOUR_MS, part=part, facts=facts)
        for part, facts in ((Part.FILES, files), (Part.HOLDERS, holders))
    ]
