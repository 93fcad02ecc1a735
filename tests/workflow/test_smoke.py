"""``make smoke`` against the local stack: what it finds well, what it finds wrong, and that nothing is left behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
from pyiceberg.catalog import load_catalog

from icekeeper.demo.seaweedfs import running_seaweedfs
from local_stack import moto_s3tables
from local_stack.moto_server import REGION, running_moto
from local_stack.outside_view import OutsideView
from local_stack.stack import LocalStack, deployed
from smoke.__main__ import main
from support.rights_fleet import RightsFleet

CATALOG = "lake"
CHECKSUMS = "AWS_REQUEST_CHECKSUM_CALCULATION"
Smoked: TypeAlias = tuple[LocalStack, Callable[..., int]]


@pytest.fixture(scope="module")
def smoked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Smoked]:
    """A stack over an empty table bucket, and the command for it."""
    folder: Path = tmp_path_factory.mktemp("smoke")
    with running_seaweedfs(folder) as server, running_moto() as moto:
        server.create_table_bucket("smoke")
        properties = {"type": "rest", **server.catalog_properties("smoke")}
        with deployed(moto, parameters={"Catalogs": CATALOG}) as stack:
            lines = "".join(f"    {key}: '{value}'\n" for key, value in properties.items())
            stack.put_control("config/pyiceberg.yaml", f"catalog:\n  {CATALOG}:\n{lines}")
            view = OutsideView(stack)
            name = view.describe()

            def look(seconds: float) -> None:
                view.deliver()
                time.sleep(min(seconds, 0.05))

            def smoke(*arguments: str) -> int:
                return main(
                    [name, "--region", REGION, "--timeout", "12000", *arguments], properties=properties, sleep=look
                )

            yield stack, smoke
            assert load_catalog(CATALOG, **properties).list_namespaces() == []


@pytest.mark.slow
@pytest.mark.seaweedfs
def test_a_stack_that_works_is_told_to(smoked: Smoked, capsys: pytest.CaptureFixture[str]) -> None:
    stack, smoke = smoked
    stack.start_afresh()
    code = smoke("--catalog", CATALOG)
    told = capsys.readouterr().out
    assert (code, "the stack works" in told) == (0, True), told
    assert [run.state for run in stack.jobs["compact_data_files"].runs] == ["SUCCEEDED", "SUCCEEDED"]
    for expected in (
        "pass as deployed: files: 6 files before, 1 after",
        "pass in Glue jobs: where: compaction was planned for glue",
        "pass in Glue jobs: rows: all 1200 rows are there, each as written",
    ):
        assert f"ok     {expected}" in told, told


def test_a_stack_whose_table_bucket_compacts_by_itself_works(
    fleet: RightsFleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As every bucket on AWS does.  PyArrow writes the rows, with headers that a table bucket takes."""
    # So that it is removed again: what smoke sets is for its own process.
    monkeypatch.setenv(CHECKSUMS, "")
    monkeypatch.delenv(CHECKSUMS)
    stack = fleet.stack
    bucket = stack.moto.client("s3tables").create_table_bucket(name="rights-smoke")["arn"]
    stack.stand_in({}, fleet.jobs_in_this_process())
    view = OutsideView(stack)
    properties = {
        "py-catalog-impl": "support.aws_table_bucket.TableBucketCatalog",
        "warehouse": bucket,
        "s3tables.endpoint": stack.moto.endpoint,
        **stack.moto.s3_properties,
    }
    moto_s3tables.PUTS.clear()

    def look(seconds: float) -> None:
        view.deliver()
        time.sleep(min(seconds, 0.05))

    code = main(
        [view.describe(), "--region", REGION, "--catalog", bucket, "--timeout", "12000"],
        properties=properties,
        sleep=look,
    )
    told = capsys.readouterr().out
    assert (code, "the stack works" in told) == (0, True), told
    assert "ok     pass as deployed: files: 6 files before, 1 after" in told, told
    # Only for the scratch table, and by smoke: the stack itself took nothing over.
    assert [(address[0], kind, value) for address, kind, value in moto_s3tables.PUTS] == [
        (bucket, kind, {"status": "disabled"}) for kind in ("icebergCompaction", "icebergSnapshotManagement")
    ]


def test_what_is_wrong_is_told(smoked: Smoked, capsys: pytest.CaptureFixture[str]) -> None:
    stack, smoke = smoked

    def denied(event: object) -> object:
        raise PermissionError("AccessDenied: not authorized to perform: s3tables:GetTable")

    stack.stand_in({"detect": denied}, {})
    try:
        assert smoke("--catalog", CATALOG) == 1
    finally:
        stack.stand_in({}, {})
    told = capsys.readouterr().out
    assert "WRONG  pass as deployed: run smoke-" in told
    assert "WRONG  pass as deployed: files: 6 files before, 6 after" in told
    assert "ok     pass as deployed: rows: all 600 rows are there, each as written" in told
    assert "check(s) found something wrong" in told


def test_a_stack_that_is_not_there_is_a_wrong_call(smoked: Smoked, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-stack", "--region", REGION]) == 2
    assert "the stack no-such-stack cannot be read: " in capsys.readouterr().err
