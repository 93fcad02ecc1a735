"""Passes over a table bucket whose own maintenance is switched on, and stands still, fails, or does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto.s3tables.responses import S3TablesResponse

from icekeeper.engines.engine import EngineName
from icekeeper.errors import StorageError
from icekeeper.model import TableName
from icekeeper.operation_facts import BuiltIn
from icekeeper.policy.ownership import OWNED
from icekeeper.report.outcome import PassOutcome
from icekeeper.runtime import Runtime, open_engine
from local_stack import moto_s3tables
from local_stack.moto_server import MotoServer
from support.aws_table_bucket import runtime_of_table_bucket
from support.command import Command

NAME = TableName.parse("ns.t")
COMPACTION, SNAPSHOTS, FILES = (built_in.value for built_in in BuiltIn)
TAGS = "Iceberg Snapshot management does not currently support user defined tags or references."


class Lake:
    """One table bucket in which everything is switched on, with a table of two snapshots."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        address = runtime.catalog.warehouse, "ns", "t"
        self.address: tuple[str, ...] = address
        moto_s3tables.ANSWERS[address] = moto_s3tables.ANSWERS[address[:1]] = {}

    def went(self, **jobs: dict[str, str]) -> None:
        moto_s3tables.JOBS[self.address] = jobs

    def maintain(self, **settings: str) -> PassOutcome:
        eager = {"snapshot_retention_hours": "0", "max_snapshots_to_keep": "1", "min_input_files": "2", **settings}
        with open_engine(EngineName.LOCAL) as engine:
            return self.runtime.maintain(NAME, eager, engine)


@pytest.fixture
def lake(moto_server: MotoServer, tmp_path: Path) -> Iterator[Lake]:
    yield Lake(runtime_of_table_bucket(moto_server, tmp_path, appends=2))
    for known in (moto_s3tables.ANSWERS, moto_s3tables.JOBS):
        known.clear()


def endings(outcome: PassOutcome) -> dict[str, tuple[str, str | None]]:
    return {part.operation.value: (part.status.value, part.reason) for part in outcome.operations}


def test_snapshots_that_aws_never_expires_are_expired(lake: Lake) -> None:
    """A tag of somebody stops the bucket's expiry for good, while its configuration says that it is on."""
    lake.went(**{SNAPSHOTS: {"status": "Failed", "failureMessage": TAGS}})
    found = endings(lake.maintain(operations="compact,expire_snapshots"))
    assert found == {"compact": ("skipped", OWNED), "expire_snapshots": ("succeeded", None)}
    assert len(lake.runtime.catalog.load(NAME).metadata.snapshots) == 1
    assert lake.runtime.health(NAME).warnings["bucket_jobs_failed"] == (
        f"of the table bucket's own maintenance icebergSnapshotManagement failed: {TAGS} "
        "(that lasts, so Icekeeper does it)"
    )


def test_a_run_that_failed_once_is_told_and_stays_the_buckets(lake: Lake) -> None:
    lake.went(**{COMPACTION: {"status": "Failed", "failureMessage": "Internal error"}})
    found = endings(lake.maintain(operations="compact,expire_snapshots"))
    assert found == {
        "compact": ("skipped", f"{OWNED}; the bucket's own last run failed: Internal error"),
        "expire_snapshots": ("skipped", OWNED),
    }


def test_jobs_are_asked_about_only_where_the_bucket_is_left_something(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    response: Any = S3TablesResponse
    answered = response.get_table_maintenance_job_status

    def count(self: S3TablesResponse) -> Any:
        asked.append(self.raw_path)
        return answered(self)

    monkeypatch.setattr(S3TablesResponse, "get_table_maintenance_job_status", count)
    loaded = lake.runtime.catalog.load(NAME)
    lake.runtime.policy(loaded, {"operations": "rewrite_manifests"})
    lake.runtime.policy(loaded, {"operations": "compact,expire_snapshots", "ownership": "icekeeper"})
    lake.runtime.policy(loaded, {"maintenance_enabled": "false"})
    assert asked == []
    lake.runtime.policy(loaded, {"operations": "rewrite_manifests,expire_snapshots"})
    assert len(asked) == 1


def test_a_bucket_that_does_not_answer_lets_no_operation_be_skipped(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """moto without the operation: HTTP 500.  The pass had succeeded, with everything skipped (rule 139)."""
    monkeypatch.delattr(S3TablesResponse, "get_table_maintenance_configuration")
    with pytest.raises(StorageError, match=r"^what table bucket arn:\S+ maintains itself is not known: S3 Tables "):
        lake.maintain()
    (skip,) = lake.runtime.detect({}).skipped
    assert (skip.table, skip.is_error) == ("ns.t", True)
    assert skip.reason.startswith("what table bucket ")


def test_a_pin_says_when_the_bucket_would_not_keep_it(
    lake: Lake, command: Command, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {
        "type": "s3tables",
        "warehouse": lake.address[0],
        "s3tables.endpoint": moto_server.endpoint,
        **moto_server.s3_properties,
    }
    for key, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__AWS__{key.replace('.', '__').replace('-', '_').upper()}", value)
    sentence = (
        "the table bucket expires snapshots itself, and knows no pins: the pinned snapshot may expire earlier; set "
        "ownership=icekeeper, or switch the bucket's snapshot management off for this table"
    )
    add = ("pin", "add", "ns.t", "--snapshot", "current", "--ttl", "1h", "--name", "p")
    told = command(*add, "--json", catalog="aws")
    assert (told.code, told.json["warnings"], told.json["pin"]["name"]) == (0, [sentence], "p")
    assert f"warning: {sentence}\n" in command(*add, catalog="aws").out

    lake.went(**{SNAPSHOTS: {"status": "Disabled"}})
    told = command(*add, "--json", catalog="aws")
    assert (told.code, "warnings" in told.json) == (0, False)
    assert "warning" not in command(*add, catalog="aws").out
