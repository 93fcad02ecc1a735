"""Every command of docs/getting-started.md works on each catalog of the page, which the page's lines configure."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog import Catalog, CatalogType, load_catalog
from pyiceberg.catalog.rest import SIGV4, SIGV4_REGION, SIGV4_SERVICE

from icekeeper.cli import main
from local_stack import moto_s3tables
from local_stack.moto_server import MotoServer
from support.aws_table_bucket import TableBucketCatalog

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "getting-started.md").read_text()
CATALOGS = dict(re.findall(r"^```yaml (\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = [
    shlex.split(line)[1:]
    for block in re.findall(r"^```sh test\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
ROWS = pa.table({"order_id": [1, 2, 3], "region": ["us", "eu", None]})


def sql(written: Mapping[str, str], tmp_path: Path, request: pytest.FixtureRequest) -> tuple[dict[str, str], Catalog]:
    (tmp_path / "lake").mkdir()
    properties = {key: value.replace("/tmp/lake", str(tmp_path / "lake")) for key, value in written.items()}
    return properties, load_catalog("lake", **properties)


def rest(written: Mapping[str, str], tmp_path: Path, request: pytest.FixtureRequest) -> tuple[dict[str, str], Catalog]:
    """SeaweedFS with only the keys of the page."""
    bucket = request.getfixturevalue("table_bucket")
    properties = {key: bucket[key] for key in written}
    return properties, load_catalog("lake", **properties)


def s3tables(
    written: Mapping[str, str], tmp_path: Path, request: pytest.FixtureRequest
) -> tuple[dict[str, str], Catalog]:
    """A table bucket whose own maintenance is off, as the page requires; the writer stands in for an engine."""
    moto: MotoServer = request.getfixturevalue("moto_server")
    arn = moto.client("s3tables").create_table_bucket(name="my-bucket")["arn"]
    off = {"status": "disabled"}
    moto_s3tables.ANSWERS[(arn,)] = {"icebergUnreferencedFileRemoval": off}
    moto_s3tables.ANSWERS[arn, "shop", "orders"] = {"icebergCompaction": off, "icebergSnapshotManagement": off}
    aws = {**written, "warehouse": arn, "s3tables.endpoint": moto.endpoint, **moto.s3_properties}
    return aws, TableBucketCatalog("lake", **aws, **{"py-io-impl": "support.aws_table_bucket.BlindFileIO"})


def glue(written: Mapping[str, str], tmp_path: Path, request: pytest.FixtureRequest) -> tuple[dict[str, str], Catalog]:
    moto: MotoServer = request.getfixturevalue("moto_server")
    moto.client("s3").create_bucket(Bucket="glue-lake")
    aws = {**written, **moto.glue_properties}
    return aws, load_catalog("lake", **aws, warehouse="s3://glue-lake")


def test_the_other_form_of_a_table_bucket_is_one_that_pyiceberg_reads() -> None:
    """PyIceberg has no type s3tables; it signs requests to the bucket's REST endpoint by these three properties."""
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    form, ours = (yaml.safe_load(text)["catalog"]["lake"] for text in (block, CATALOGS["s3tables"]))
    signing = {SIGV4: "true", SIGV4_SERVICE: "s3tables", SIGV4_REGION: "us-east-1"}
    address = "https://s3tables.us-east-1.amazonaws.com/iceberg"
    assert form == {"type": CatalogType.REST.value, "uri": address, "warehouse": ours["warehouse"], **signing}
    assert ours["type"] not in [kind.value for kind in CatalogType]


KINDS: dict[str, Any] = {"rest": rest, "s3tables": s3tables, "glue": glue, "sql": sql}


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_of_the_page_works_on_each_kind_of_catalog(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only addresses and keys are replaced, and emulators of AWS get an endpoint."""
    assert set(CATALOGS) == set(KINDS)
    written = yaml.safe_load(CATALOGS[kind])["catalog"]["lake"]
    assert written["type"] == kind
    for name in [*os.environ]:
        if name.startswith(("PYICEBERG_", "ICEKEEPER_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    properties, catalog = KINDS[kind](written, tmp_path, request)
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", ROWS.schema)
    for _ in range(6):
        table.append(ROWS)
    (tmp_path / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {"lake": properties}}))
    for arguments in COMMANDS:
        code = main(arguments)
        reported = capsys.readouterr()
        assert code == 0, f"{arguments}\n{reported.out}{reported.err}"
    scan = catalog.load_table("shop.orders").scan()
    assert (len(list(scan.plan_files())), scan.to_arrow().num_rows) == (1, 18)
    assert "shop.orders" in (tmp_path / "lake.html").read_text()
