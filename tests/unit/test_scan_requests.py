"""What a person asked for comes first in a scan, whatever the table was called, and is refused or kept for a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from icekeeper.detection.proposal import FleetProposal, FleetSkip, Proposal
from icekeeper.errors import MetadataUnreadable, PolicyError, StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import MaintenanceRequest
from support.scans import FILES, CountedState, PreparedCatalog, names, request, scanned, with_uuid
from support.settings import MB, small_files, table


@pytest.fixture
def state(tmp_path: Path) -> CountedState:
    return CountedState(tmp_path / "state.db")


def test_what_a_person_asked_for_comes_first_also_past_the_filters(state: CountedState) -> None:
    catalog = PreparedCatalog(
        {
            "ns.urgent": with_uuid(table(small_files(1000, MB)), "u1"),
            "ns.quiet": with_uuid(table(), "u2"),
            "other.t": with_uuid(table(small_files(10, MB)), "u3"),
        }
    )
    state.requests.file(request("other.t", "u3", requested_ms=2, operations="compact"))
    state.requests.file(request("ns.quiet", "u2", requested_ms=1))
    report = scanned(state, catalog, namespace_filter="ns", max_jobs_per_detection=2)
    assert report.proposals == (
        FleetProposal(
            "C", "s3://prod-lake/", Proposal("ns.quiet", ("requested by a person",), 1.0, "u2", "s3://b/t"), True
        ),
        FleetProposal(
            "C",
            "s3://prod-lake/",
            Proposal("other.t", ("requested by a person", FILES.format(10)), 1.0, "u3", "s3://b/t"),
            True,
            {"operations": "compact"},
        ),
    )
    assert report.skipped == (FleetSkip("C", "ns.urgent", "beyond max_jobs_per_detection 2"),)
    # Detection claims nothing: that is for the run.
    assert len(state.requests.pending()) == 2


@pytest.mark.parametrize(
    ("catalog", "warehouse", "name"),
    [
        ("C", "s3://prod-lake", "ns.t"),
        ("C", "s3://prod-lake/", "ns.formerly"),
        ("alias", "s3://prod-lake/", "ns.t"),
        ("alias", "s3://prod-lake/", "NS.T"),
    ],
    ids=["warehouse", "renamed", "catalog", "case"],
)
def test_a_request_is_found_whatever_the_table_was_called(
    state: CountedState, catalog: str, warehouse: str, name: str
) -> None:
    """Its name says where to look first; which table is meant, its UUID."""
    identity = TableIdentity(catalog, warehouse, TableName.parse(name), "U1", "s3://b/t")
    state.requests.file(MaintenanceRequest(identity=identity, requested_ms=1, settings={"operations": "compact"}))
    tables = {"ns.t": with_uuid(table(), "u1"), "ns.urgent": with_uuid(table(small_files(1000, MB)), "u2")}
    report = scanned(state, PreparedCatalog({**tables, "ns.formerly": PolicyError("there is no such table")}))
    proposed = {item.proposal.table: (item.is_requested, dict(item.settings)) for item in report.proposals}
    assert proposed == {"ns.t": (True, {"operations": "compact"}), "ns.urgent": (False, {})}
    assert len(state.requests.pending()) == 1, "it is for the run to claim"


def test_a_request_under_another_name_is_looked_for_first(state: CountedState) -> None:
    alias = TableIdentity("alias", "s3://prod-lake/", TableName.parse("OTHER.T"), "u3", "s3://b/t")
    state.requests.file(MaintenanceRequest(identity=alias, requested_ms=1))
    catalog = PreparedCatalog({"ns.a": with_uuid(table(), "u1"), "other.t": with_uuid(table(), "u3")})
    report = scanned(state, catalog, threads=1, namespace_filter="ns")
    assert names(report) == ["other.t"], "also past the filters"
    assert catalog.loads == ["other.t", "ns.a"]


def test_a_deployment_that_forbids_maintenance_refuses_requests_and_a_table_does_not(state: CountedState) -> None:
    disabled = TableMetadata({**table().document, "properties": {"icekeeper.maintenance_enabled": "false"}})
    catalog = PreparedCatalog({"ns.t": disabled})
    state.requests.file(request("ns.t"))
    assert names(scanned(state, catalog)) == ["ns.t"]
    report = scanned(state, catalog, environment={"ICEKEEPER_BOUND_MAINTENANCE_ENABLED": "false"})
    # The bound is above what the table says, and it already says false: it is the deployment's that counts.
    assert names(report) == []
    assert report.skipped[0].reason.startswith("requested by a person, but maintenance is disabled (")


def test_a_request_for_a_table_that_was_created_anew_is_not_for_the_new_one(state: CountedState) -> None:
    catalog = PreparedCatalog({"ns.t": with_uuid(table(small_files(10, MB)), "new")})
    state.requests.file(request("ns.t", "old"))
    (item,) = scanned(state, catalog).proposals
    assert (item.is_requested, item.proposal.reasons) == (False, (FILES.format(10),))
    assert state.requests.pending() == ()  # nobody will ever serve it
    state.requests.file(request("ns.t", "old"))
    assert scanned(state, catalog, table_filter="x").skipped == (
        FleetSkip("C", "ns.t", "a pass was requested for a table of this name that is gone"),
    )
    state.requests.file(request("ns.t", "new", requested_ms=5))
    assert [item.is_requested for item in scanned(state, catalog).proposals] == [True]


def test_a_requested_table_that_is_gone_or_cannot_be_assessed_is_an_error(state: CountedState) -> None:
    catalog = PreparedCatalog({"ns.t": PolicyError("there is no table ns.t in catalog C")})
    state.requests.file(request("ns.t"))
    assert scanned(state, catalog).skipped == (FleetSkip("C", "ns.t", "there is no table ns.t in catalog C", True),)
    assert scanned(state, PreparedCatalog({})).skipped == ()  # told once


def test_a_requested_table_that_cannot_be_read_now_keeps_its_request(state: CountedState) -> None:
    state.requests.file(request("ns.t"))
    for trouble in (StorageError("no answer"), MetadataUnreadable("damaged")):
        assert scanned(state, PreparedCatalog({"ns.t": trouble})).errors == 1
    wrong = TableMetadata({**table().document, "properties": {"icekeeper.min_input_files": "few"}})
    assert scanned(state, PreparedCatalog({"ns.t": wrong})).errors == 1
    assert len(state.requests.pending()) == 1
