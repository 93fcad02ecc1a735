"""A table bucket as an Iceberg REST catalog: what a pass asks the endpoint for, its role may (rule 143)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from icekeeper.catalogs.load import open_catalog
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.model import TableName
from icekeeper.report.outcome import PassStatus
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from local_stack.rights.evaluate import decide
from local_stack.rights.rest_needs import rest_needs
from local_stack.rights.roles import roles_of
from local_stack.template import ACCOUNT, REGION, TEMPLATE, Template
from support.proxies import counting_proxy

BUCKET = f"arn:aws:s3tables:{REGION}:{ACCOUNT}:bucket/lake"
SETTINGS = {"operations": "compact", "min_input_files": "2"}


def test_a_pass_over_a_rest_catalog_needs_what_its_role_may(table_bucket: dict[str, str], tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array(range(5), pa.int64())})
    writer = load_catalog("lake", **table_bucket)
    writer.create_namespace("ns")
    table = writer.create_table("ns.t", rows.schema)
    for _ in range(2):
        table.append(rows)
    with counting_proxy(table_bucket["uri"]) as proxy:
        catalog = open_catalog("lake", {**table_bucket, "uri": proxy.address})
        (name,) = catalog.list_tables()
        runtime = Runtime(catalog, SqliteStateStore(tmp_path / "state.db"), environment={})
        outcome = runtime.maintain(TableName(("ns",), "t"), SETTINGS, LocalEngine(1))
    assert (str(name), outcome.status) == ("ns.t", PassStatus.SUCCEEDED)
    # A list of namespaces with a parent looks to the proxy like one of objects.
    asked = [("GET" if one.kind == "LIST" else one.kind, one.path) for one in proxy.requests]
    needs = {str(need): need for method, path in asked for need in rest_needs(method, path, BUCKET)}
    assert {need.action.removeprefix("s3tables:") for need in needs.values()} == {
        *("GetTableBucket", "ListNamespaces", "ListTables", "GetTableMetadataLocation", "GetTableData"),
        *("UpdateTableMetadataLocation", "PutTableData"),
    }
    template = Template(TEMPLATE, "stack", {"TableBucketArns": BUCKET})
    role = roles_of(template)[template.role_of("CompactSmallFunction", {})]
    assert [text for text, need in needs.items() if not decide(role, need).is_allowed] == []
