"""Passes over a table bucket that, as AWS does, maintains its tables itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from moto.core.exceptions import JsonRESTError
from moto.s3tables.responses import S3TablesResponse

from icekeeper.catalogs.bucket_maintenance import maintenance_behind
from icekeeper.engines.engine import EngineName
from icekeeper.errors import StorageError
from icekeeper.model import TableName
from icekeeper.operation_facts import BuiltIn
from icekeeper.policy.ownership import OWNED, OWNED_FOR_ALL_TABLES
from icekeeper.report.outcome import PassOutcome
from icekeeper.runtime import Runtime, open_engine
from local_stack import moto_s3tables
from local_stack.moto_server import MotoServer
from support.aws_table_bucket import runtime_of_table_bucket

NAME = TableName.parse("ns.t")
EAGER = {"snapshot_retention_hours": "0", "max_snapshots_to_keep": "1", "min_input_files": "2"}
COMPACTION, SNAPSHOTS, FILES = (built_in.value for built_in in BuiltIn)
BLIND = "objects cannot be listed in this storage; it removes unreferenced files itself"


@dataclass(frozen=True)
class Lake:
    """One table bucket with a table of six small files."""

    runtime: Runtime

    @property
    def address(self) -> tuple[str, str, str]:
        return self.runtime.catalog.warehouse, "ns", "t"

    def answers(self, of_table: dict[str, Any], of_bucket: dict[str, Any]) -> None:
        moto_s3tables.ANSWERS[self.address] = of_table
        moto_s3tables.ANSWERS[self.address[:1]] = of_bucket

    @property
    def puts(self) -> list[tuple[str, Any]]:
        return [(kind, value) for address, kind, value in moto_s3tables.PUTS if address == self.address]

    def maintain(self, *, dry_run: bool = False, **settings: str) -> PassOutcome:
        with open_engine(EngineName.LOCAL) as engine:
            return self.runtime.maintain(NAME, {**EAGER, **settings}, engine, dry_run=dry_run)

    def token(self) -> str:
        return self.runtime.catalog.load(NAME).token


@pytest.fixture
def lake(moto_server: MotoServer, tmp_path: Path) -> Iterator[Lake]:
    yield Lake(runtime_of_table_bucket(moto_server, tmp_path, appends=6))
    moto_s3tables.ANSWERS.clear()
    moto_s3tables.PUTS.clear()


def endings(outcome: PassOutcome) -> dict[str, tuple[str, str | None]]:
    return {part.operation.value: (part.status.value, part.reason) for part in outcome.operations}


def test_moto_still_lacks_what_is_patched_into_it(moto_server: MotoServer) -> None:
    """Once it has these operations, local_stack/moto_s3tables.py can go."""
    assert {getattr(S3TablesResponse, name).__module__ for name in moto_s3tables.OPERATIONS} == {
        "local_stack.moto_s3tables"
    }
    assert moto_s3tables.MOTOS_OWN == ()


@pytest.mark.parametrize("dry_run", [True, False])
def test_what_aws_does_unless_told_otherwise_is_left_to_it(lake: Lake, dry_run: bool) -> None:
    """An empty configuration: everything is enabled."""
    lake.answers({}, {})
    before = lake.token()
    outcome = lake.maintain(dry_run=dry_run)
    assert endings(outcome) == {
        "compact": ("skipped", OWNED),
        "rewrite_position_deletes": ("skipped", OWNED),
        "expire_snapshots": ("skipped", OWNED),
        "remove_orphans": ("skipped", OWNED),
        "rewrite_manifests": ("succeeded", None),
    }
    assert outcome.status.value == "succeeded"
    assert (lake.token() == before) is dry_run
    assert lake.puts == []


def test_each_operation_has_its_own_owner(lake: Lake) -> None:
    lake.answers(
        {COMPACTION: {"status": "enabled"}, SNAPSHOTS: {"status": "disabled"}}, {FILES: {"status": "disabled"}}
    )
    found = endings(lake.maintain(operations="compact,expire_snapshots,remove_orphans"))
    assert found == {
        "compact": ("skipped", OWNED),
        "expire_snapshots": ("succeeded", None),
        "remove_orphans": ("skipped", BLIND),
    }


def _denied(_: S3TablesResponse) -> Any:
    error = JsonRESTError("ForbiddenException", "not authorized")
    error.code = 403
    raise error


def test_a_server_that_does_not_tell_keeps_us_from_everything_it_may_do(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rights are missing; what may be told by waiting is an error instead (see below)."""
    for name in moto_s3tables.OPERATIONS:
        monkeypatch.setattr(S3TablesResponse, name, _denied)
    before = lake.token()
    for ownership in ("auto", "icekeeper"):
        outcome = lake.maintain(ownership=ownership, operations="compact,expire_snapshots,remove_orphans")
        asked = {
            "compact": "s3tables:GetTableMaintenanceConfiguration",
            "expire_snapshots": "s3tables:GetTableMaintenanceConfiguration",
            "remove_orphans": "s3tables:GetTableBucketMaintenanceConfiguration",
        }
        assert endings(outcome) == {
            operation: (
                "skipped",
                "whether the table bucket does this itself cannot be read (S3 Tables failed with ForbiddenException: "
                "not authorized); "
                f"allow {action}",
            )
            for operation, action in asked.items()
        }
        assert outcome.status.value == "succeeded"
    assert lake.token() == before


def test_taking_over_switches_the_buckets_own_off_and_then_runs(lake: Lake) -> None:
    lake.answers({COMPACTION: {"status": "enabled", "settings": {COMPACTION: {"targetFileSizeMB": 64}}}}, {})
    before = lake.token()
    dry = lake.maintain(dry_run=True, ownership="icekeeper")
    assert (lake.puts, lake.token()) == ([], before)

    outcome = lake.maintain(ownership="icekeeper")
    found = endings(outcome)
    assert found["compact"] == found["expire_snapshots"] == ("succeeded", None)
    assert found["remove_orphans"] == ("skipped", OWNED_FOR_ALL_TABLES)
    # What was stated there stays stated, and holds for us.
    kept = {"status": "disabled", "settings": {COMPACTION: {"targetFileSizeMB": 64}}}
    assert lake.puts == [(COMPACTION, kept), (COMPACTION, kept), (SNAPSHOTS, {"status": "disabled"})]
    assert {part.operation: part.files_planned for part in dry.operations if part.operation.value == "compact"} == {
        part.operation: part.files_planned for part in outcome.operations if part.operation.value == "compact"
    }
    resolved = lake.runtime.policy(lake.runtime.catalog.load(NAME), {})
    assert resolved.policy.target_file_size_mb == 64
    assert resolved.sources["target_file_size_mb"] == "S3 Tables maintenance configuration"
    # From now on it is ours without being asked to take over.
    assert "compact" not in {operation.value for operation in resolved.owners.owned}


def test_only_what_is_about_to_run_is_taken_over(lake: Lake) -> None:
    lake.answers({}, {})
    lake.maintain(ownership="icekeeper", operations="expire_snapshots,compact", rewrite_enabled="false",
                  delete_compaction_enabled="false")  # fmt: skip
    assert lake.puts == [(SNAPSHOTS, {"status": "disabled"})]


def test_a_bucket_that_cannot_be_switched_off_is_not_competed_with(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.answers({}, {})
    monkeypatch.delattr(S3TablesResponse, "put_table_maintenance_configuration")
    before = lake.token()
    outcome = lake.maintain(ownership="icekeeper", operations="compact,expire_snapshots")
    assert endings(outcome) == {
        operation: (
            "refused",
            f"the table bucket's own {built_in} could not be switched off (S3 Tables failed with 500), so nothing was "
            "done; allow s3tables:PutTableMaintenanceConfiguration, or set ownership=auto",
        )
        for operation, built_in in (("compact", COMPACTION), ("expire_snapshots", SNAPSHOTS))
    }
    assert lake.token() == before


def test_detection_does_not_propose_what_is_not_ours(lake: Lake) -> None:
    lake.answers({}, {})
    settings = {**EAGER, "min_manifests_to_rewrite": "100"}
    assert lake.runtime.detect(settings).proposals == ()
    (proposal,) = lake.runtime.detect({**settings, "ownership": "icekeeper"}).proposals
    assert proposal.reasons[0] == "6 snapshots exceed max_snapshots_to_keep 1"


def test_the_sweep_of_a_bucket_leaves_it_to_the_bucket(lake: Lake) -> None:
    lake.answers({}, {})
    location = lake.runtime.catalog.load(NAME).metadata.location
    with open_engine(EngineName.LOCAL) as engine:
        outcome = lake.runtime.sweep_bucket(location, {}, engine)
    assert {name: (found.status.value, found.reason) for name, found in outcome.tables.items()} == {
        "ns.t": ("skipped", OWNED)
    }


def test_the_rest_endpoint_of_a_table_bucket_is_known_by_its_arn(lake: Lake, moto_server: MotoServer) -> None:
    lake.answers({COMPACTION: {"status": "disabled"}}, {FILES: {"status": "disabled"}})
    properties = {**moto_server.s3_properties, "s3tables.endpoint": moto_server.endpoint}
    maintenance = maintenance_behind({**properties, "warehouse": lake.runtime.catalog.warehouse})
    assert maintenance is not None
    found = maintenance.read(NAME)
    assert [(kind.value, state.is_enabled) for kind, state in found.states.items()] == [
        (COMPACTION, False),
        (SNAPSHOTS, True),
        (FILES, False),
    ]
    with pytest.raises(StorageError, match="switched off for all tables of a bucket"):
        maintenance.disable(NAME, BuiltIn.UNREFERENCED_FILE_REMOVAL)
    for warehouse in ("", "lake", "s3://lake/", "arn:aws:s3:::lake", "arn:aws:s3tables:us-east-1:1:table/x"):
        assert maintenance_behind({**properties, "warehouse": warehouse}) is None


def test_without_credentials_ownership_is_not_known(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for more in ({}, {"s3tables.profile-name": "nobody"}):
        maintenance = maintenance_behind({"warehouse": lake.runtime.catalog.warehouse, **more})
        assert maintenance is not None
        assert set(maintenance.read(NAME).unreadable) == set(BuiltIn)
