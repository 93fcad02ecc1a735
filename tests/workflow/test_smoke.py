"""``make smoke`` against the local stack: it passes, it finds faults, and it leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import TypeAlias

import pytest
from pyiceberg.catalog import load_catalog

from icekeeper.demo.seaweedfs import SeaweedFSServer
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.pipeline import glue_job
from local_stack import moto_s3tables
from local_stack.moto_server import REGION, MotoServer
from local_stack.outside_view import OutsideView
from local_stack.stack import LocalStack, deployed
from smoke.__main__ import main
from support.examples import in_nightly
from support.rights_fleet import RightsFleet, jobs_in_this_process

CATALOG = "lake"
CHECKSUMS = "AWS_REQUEST_CHECKSUM_CALCULATION"
Smoked: TypeAlias = tuple[LocalStack, Callable[..., int]]


@pytest.fixture
def smoked(
    seaweedfs: SeaweedFSServer, table_bucket: dict[str, str], moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Smoked]:
    """A stack over an empty table bucket, whose jobs run in this process, and the smoke command for it."""
    monkeypatch.setattr(glue_job, "open_engine", lambda name: nullcontext(LocalEngine(1)))
    properties = {"type": "rest", **table_bucket}
    with deployed(moto_server, parameters={"Catalogs": CATALOG}) as stack:
        lines = "".join(f"    {key}: '{value}'\n" for key, value in properties.items())
        stack.put_control("config/pyiceberg.yaml", f"catalog:\n  {CATALOG}:\n{lines}")
        stack.stand_in({}, jobs_in_this_process(stack))
        yield stack, smoke_of(stack, properties)
        assert load_catalog(CATALOG, **properties).list_namespaces() == []


def smoke_of(stack: LocalStack, properties: Mapping[str, str]) -> Callable[..., int]:
    """``make smoke`` for a stack, whose logs and metrics reach CloudWatch while it waits."""
    view = OutsideView(stack)
    name = view.describe(Ownership="auto")

    def look(seconds: float) -> None:
        view.deliver()
        time.sleep(min(seconds, 0.05))

    return lambda *arguments: main(
        [name, "--region", REGION, "--timeout", "12000", *arguments], properties=properties, sleep=look
    )


@in_nightly
def test_a_stack_that_works_passes_and_a_fault_is_reported(smoked: Smoked, capsys: pytest.CaptureFixture[str]) -> None:
    stack, smoke = smoked
    code = smoke("--catalog", CATALOG)
    shown = capsys.readouterr().out
    assert (code, "the stack works" in shown) == (0, True), shown
    assert [run.state for run in stack.jobs["compact_data_files"].runs] == ["SUCCEEDED", "SUCCEEDED"]
    for expected in (
        "pass as deployed: files: 6 files before, 1 after",
        "pass in Glue jobs: where: compaction was planned for glue",
        "pass in Glue jobs: rows: all 1200 rows are there, each as written",
    ):
        assert f"ok     {expected}" in shown, shown

    def denied(event: object) -> object:
        raise PermissionError("AccessDenied: not authorized to perform: s3tables:GetTable")

    stack.stand_in({"read": denied}, {})
    assert smoke("--catalog", CATALOG) == 1
    shown = capsys.readouterr().out
    assert "WRONG  pass as deployed: run smoke-" in shown
    assert "WRONG  pass as deployed: files: 6 files before, 6 after" in shown
    assert "ok     pass as deployed: rows: all 600 rows are there, each as written" in shown
    assert "check(s) found a problem" in shown


@in_nightly
def test_a_stack_works_whose_table_bucket_compacts_itself(
    fleet: RightsFleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As every bucket on AWS does.  PyArrow writes the rows, with headers that a table bucket accepts."""
    # Restores the variable, which smoke sets for its whole process.
    monkeypatch.setenv(CHECKSUMS, "")
    monkeypatch.delenv(CHECKSUMS)
    stack = fleet.stack
    bucket = stack.moto.client("s3tables").create_table_bucket(name="rights-smoke")["arn"]
    stack.stand_in({}, jobs_in_this_process(stack))
    properties = {
        "py-catalog-impl": "support.aws_table_bucket.TableBucketCatalog",
        "warehouse": bucket,
        "s3tables.endpoint": stack.moto.endpoint,
        **stack.moto.s3_properties,
    }
    moto_s3tables.PUTS.clear()

    code = smoke_of(stack, properties)("--catalog", bucket)
    shown = capsys.readouterr().out
    assert (code, "the stack works" in shown) == (0, True), shown
    assert "ok     pass as deployed: files: 6 files before, 1 after" in shown, shown
    kept = "the bucket keeps icebergCompaction and icebergSnapshotManagement of its other tables"
    assert f"ok     ownership: with Ownership=auto {kept}" in shown, shown
    # Smoke switches maintenance off for the scratch table only; the stack itself took nothing over.
    assert [(address[0], kind, value) for address, kind, value in moto_s3tables.PUTS] == [
        (bucket, kind, {"status": "disabled"}) for kind in ("icebergCompaction", "icebergSnapshotManagement")
    ]


def test_a_missing_stack_is_a_wrong_call(moto_server: MotoServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-stack", "--region", REGION]) == 2
    assert "the stack no-such-stack cannot be read: " in capsys.readouterr().err
