"""Tables that name foreign files, by location or by symbolic link
(rule: bound-every-table, use-the-checked-folder)."""

from __future__ import annotations

import io
import json
import os
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.catalog
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icekeeper.administration.settings import reset_settings
from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import LocationRefused, MaintenanceError
from icekeeper.model import TableName
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, PassOutcome, Status
from icekeeper.runtime import Runtime
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.storage import local_files as local
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES, AllowedLocations
from icekeeper.storage.storage import Storage
from icekeeper.verification.checks import ProblemKind
from local_stack.loopback_proxy import serving
from local_stack.moto_server import MotoServer
from support.maintained_table import NAME, MaintainedTable, grow_old, new_table
from support.proxies import CountingProxy, Forwarder

# Tables that name files of this machine, of the bucket's owner or of other tenants (rule: bound-every-table).

ROWS = pa.table({"id": pa.array(range(4), pa.int64())})
# Settings with which every operation has work and deletes without waiting.
EAGER = {
    "min_input_files": "2",
    "min_manifests_to_rewrite": "2",
    "max_snapshots_to_keep": "1",
    "snapshot_retention_hours": "0",
    "orphan_older_than_hours": "0",
    "orphan_max_delete_ratio": "1",
    "statistics_columns": "id",
}


# PyIceberg as a writer stores objects in this process's moto without HTTP.
WRITER = {"py-io-impl": "support.aws_table_bucket.BlindFileIO"}


def with_appends(table: Table) -> Table:
    """Append three times; return the refreshed table."""
    for _ in range(3):
        table.append(ROWS)
    return table.refresh()


@dataclass
class Lake:
    """An S3 catalog that several tenants share, and a folder of private files on this machine."""

    bucket: str
    folder: Path
    properties: dict[str, str]
    theirs: SqlCatalog

    @property
    def private(self) -> Path:
        return self.folder / "private"

    @property
    def store(self) -> Storage:
        return Storage(self.properties)

    def table(self, name: str = "ns.t", **options: Any) -> Table:
        """A table with three small appends."""
        return with_appends(self.theirs.create_table(name, ROWS.schema, **options))

    def rewrite(self, table: Table, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the metadata file in place, as a writer of the table's files can."""
        document = json.loads(self.store.read(table.metadata_location))
        change(document)
        self.store.write(table.metadata_location, json.dumps(document).encode())

    def point(self, location: str, name: str = "t") -> None:
        with closing(sqlite3.connect(self.folder / "catalog.db")) as database, database:
            database.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = ?", (location, name))

    def catalog(self, rules: str = "") -> Catalog:
        return open_catalog("lake", {**self.properties, "type": "sql"}, {ALLOWED_PREFIXES: rules})

    def runtime(self, rules: str = "") -> Runtime:
        state = SqliteStateStore(self.folder / "state.db")
        return Runtime(self.catalog(rules), state, environment={ALLOWED_PREFIXES: rules})

    def maintain(self, name: str = "ns.t", rules: str = "", **settings: str) -> dict[str, OperationOutcome]:
        chosen = {**EAGER, **settings}
        done: PassOutcome = self.runtime(rules).maintain(TableName.parse(name), chosen, LocalEngine(1), unsafe=True)
        return {part.operation.value: part for part in done.operations}

    def keys(self) -> set[str]:
        return {item.path for item in self.store.list(f"s3://{self.bucket}")}

    def is_untouched(self) -> bool:
        """Whether the private folder is unchanged."""
        found = {path.name: path.read_bytes() for path in self.private.iterdir()}
        return found == {"secret.parquet": PARQUET, "b.avro": b"theirs", "metadata.json": b"{}"}


def _parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": pa.array([4711], pa.int64())}), sink)
    return bytes(sink.getvalue())


PARQUET = _parquet()


@pytest.fixture
def lake(moto_server: MotoServer, tmp_path: Path) -> Iterator[Lake]:
    bucket = f"lake-{uuid.uuid4()}"
    moto_server.client("s3").create_bucket(Bucket=bucket)
    properties = {
        "uri": f"sqlite:///{tmp_path / 'catalog.db'}",
        "warehouse": f"s3://{bucket}/wh",
        **moto_server.s3_properties,
    }
    catalog = SqlCatalog("lake", **properties, **WRITER)
    catalog.create_namespace("ns")
    lake = Lake(bucket, tmp_path, properties, catalog)
    lake.private.mkdir()
    for name, data in {"secret.parquet": PARQUET, "b.avro": b"theirs", "metadata.json": b"{}"}.items():
        (lake.private / name).write_bytes(data)
    grow_old(lake.private.iterdir())
    yield lake
    catalog.close()


def refusals(outcomes: dict[str, OperationOutcome]) -> list[str]:
    return [str(part.reason) for part in outcomes.values() if part.status is Status.REFUSED]


def test_a_table_of_an_s3_catalog_with_a_local_location_is_refused(lake: Lake) -> None:
    table = lake.table()
    for spelled in ("file://{}", "file:{}", "{}", "FILE://{}", "file://localhost{}", "{}/../private"):
        place = spelled.format(lake.private)
        forged = {
            "icekeeper.orphan_sweep_prefixes": place,
            "write.data.path": f"{table.location()}/data",
            "write.metadata.path": f"{table.location()}/metadata",
        }
        lake.rewrite(table, lambda document, to=place, by=forged: document.update(location=to, properties=by))  # type: ignore[misc]
        outcomes = lake.maintain()
        assert {part.status for part in outcomes.values()} == {Status.REFUSED}
        assert all("is outside s3://" in reason and ALLOWED_PREFIXES in reason for reason in refusals(outcomes))
        assert lake.is_untouched()


ELSEWHERE: tuple[dict[str, str], ...] = (
    {"write.data.path": "{}"},
    {"write.object-storage.enabled": "true", "write.object-storage.path": "{}"},
    {"write.folder-storage.path": "{}"},
    {"write.metadata.path": "{}"},
)


def test_no_file_is_written_outside_the_warehouse(lake: Lake, moto_server: MotoServer) -> None:
    """Neither on this machine nor in another tenant's bucket."""
    home, other, rows = lake.table().location(), f"other-{uuid.uuid4()}", 12
    moto_server.client("s3").create_bucket(Bucket=other)

    def forge(properties: dict[str, str], location: str) -> Table:
        table = lake.theirs.load_table("ns.t")
        lake.rewrite(table, lambda document: document.update(properties=properties, location=location))
        return table.refresh()

    for target, location in ((lake.private.as_uri(), lake.private.as_uri()), (f"s3://{other}/x", home)):
        for properties in ELSEWHERE:
            forge({}, home).append(ROWS)  # gives every operation work
            rows += len(ROWS)
            forge(
                {"write.metadata.path": f"{home}/metadata"}
                | {key: value.format(target) for key, value in properties.items()},
                location,
            )
            outcomes = lake.maintain()
            assert outcomes["compact"].status is Status.REFUSED
            assert f"{target} is outside s3://{lake.bucket}/wh" in str(outcomes["compact"].reason)
            assert lake.is_untouched()
            assert list(lake.store.list(f"s3://{other}")) == []
            assert len(lake.theirs.load_table("ns.t").scan().to_arrow()) == rows


def test_compaction_does_not_copy_a_local_file_into_the_table(lake: Lake) -> None:
    """A writer of the table registered a file of the machine that maintains the table."""
    lake.table().add_files([(lake.private / "secret.parquet").as_uri()])
    before = lake.keys()
    outcomes = lake.maintain(operations="compact", rewrite_all="true")
    assert outcomes["compact"].status is Status.REFUSED
    assert "secret.parquet is outside" in str(outcomes["compact"].reason)
    assert lake.keys() == before
    assert lake.is_untouched()


def test_a_worker_checks_the_bound_of_the_table(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker refuses even if the plan does not."""
    lake.table().add_files([(lake.private / "secret.parquet").as_uri()])
    monkeypatch.setattr(AllowedLocations, "require", lambda self, paths: None)
    monkeypatch.setattr(Storage, "require", refuse)
    before = lake.keys()
    outcome = lake.maintain(operations="compact", rewrite_all="true", min_row_group_copy_bytes="1")["compact"]
    assert outcome.status is not Status.SUCCEEDED
    assert "secret.parquet is outside" in str(outcome.reason)
    assert lake.keys() == before


def refuse(store: Storage, paths: Iterable[str]) -> None:
    for path in paths:
        if not store.allows(path):
            raise LocationRefused(f"{path} is outside")


NAMED: dict[str, Callable[[dict[str, Any], str], object]] = {
    "manifest list": lambda document, path: document["snapshots"][-1].update({"manifest-list": path}),
    "older manifest list": lambda document, path: document["snapshots"][0].update({"manifest-list": path}),
    "statistics file": lambda document, path: document.update(
        statistics=[
            {
                "snapshot-id": document["current-snapshot-id"],
                "statistics-path": path,
                "file-size-in-bytes": 6,
                "file-footer-size-in-bytes": 4,
                "blob-metadata": [],
            }
        ]
    ),
    "partition statistics file": lambda document, path: document.update(
        {
            "partition-statistics": [
                {"snapshot-id": document["current-snapshot-id"], "statistics-path": path, "file-size-in-bytes": 6}
            ]
        }
    ),
    "older metadata file": lambda document, path: document.update(
        {
            "metadata-log": [{"metadata-file": path, "timestamp-ms": 1}, *document["metadata-log"]],
            "properties": {
                "write.metadata.delete-after-commit.enabled": "true",
                "write.metadata.previous-versions-max": "1",
            },
        }
    ),
}


@pytest.mark.parametrize("what", NAMED)
def test_local_files_named_by_metadata_are_neither_read_nor_deleted(lake: Lake, what: str) -> None:
    """The file is a pipe, on which a reader would wait for ever."""
    pipe = lake.folder / "pipe.avro"
    os.mkfifo(pipe)
    lake.rewrite(lake.table(), lambda document: NAMED[what](document, pipe.as_uri()))
    runtime = lake.runtime()
    found = {problem.path: problem for problem in runtime.verify(NAME).problems}
    for read in (runtime.afresh.health, runtime.costs):
        with suppress(MaintenanceError):
            read(NAME)
    outcomes = lake.maintain()
    if what != "older metadata file":
        assert found[pipe.as_uri()].kind is ProblemKind.NOT_ALLOWED
        assert "is outside s3://" in found[pipe.as_uri()].detail
    if "manifest list" in what:
        assert {"expire_snapshots", "remove_orphans"} <= {
            name for name, part in outcomes.items() if part.status is Status.REFUSED
        }
    assert pipe.is_fifo()


@pytest.mark.parametrize("how", ["a location around it", "a metadata folder that is its own", "its very identity"])
def test_metadata_files_of_another_table_in_the_log_are_not_deleted(lake: Lake, how: str) -> None:
    """Commits delete metadata files beyond the log if the table's properties say so
    (rule: delete-below-own-locations)."""
    tenant, victim = lake.table(), lake.table("ns.victim")
    theirs = {victim.metadata_location, *(entry.metadata_file for entry in victim.metadata.metadata_log)}
    folder = {"write.metadata.path": f"{victim.location()}/metadata"} if "folder" in how else {}

    def forge(document: dict[str, Any]) -> None:
        log = [{"metadata-file": path, "timestamp-ms": 1} for path in sorted(theirs)]
        document["metadata-log"] = [*log, *document["metadata-log"]]
        document["properties"] = {
            "write.metadata.delete-after-commit.enabled": "true",
            "write.metadata.previous-versions-max": "1",
            "icekeeper.min_input_files": "2",
            **folder,
        }
        if "identity" in how:
            document.update({"table-uuid": str(victim.metadata.table_uuid), "location": victim.location()})
            document["properties"]["write.data.path"] = f"{tenant.location()}/data"
        elif not folder:
            document["location"] = f"s3://{lake.bucket}/wh"

    lake.rewrite(tenant, forge)
    runtime = lake.runtime()
    reset_settings(runtime.table(NAME), lambda loaded: runtime.policy(loaded, {}))
    assert "icekeeper.min_input_files" not in lake.theirs.load_table("ns.t").properties
    assert theirs <= lake.keys()
    lake.rewrite(lake.theirs.load_table("ns.t"), forge)
    assert lake.maintain(operations="compact")["compact"].status is Status.SUCCEEDED
    assert theirs <= lake.keys()
    assert lake.theirs.load_table("ns.victim").scan().to_arrow().num_rows == 12


def test_a_catalog_entry_outside_the_warehouse_is_refused(lake: Lake) -> None:
    lake.table()
    for path in ("{}/metadata.json", "file://{}/metadata.json", "s3://another-tenants/metadata.json"):
        lake.point(path.format(lake.private))
        with pytest.raises(LocationRefused, match=r"metadata\.json is outside s3://") as refused:
            lake.catalog().load(NAME)
        assert refused.value.pointer == path.format(lake.private)
        with pytest.raises(LocationRefused):
            lake.maintain()


def test_other_objects_of_a_shared_bucket_are_not_deleted(lake: Lake) -> None:
    """The bucket's owner stores other objects beside the warehouse."""
    table = lake.table()
    others = {f"s3://{lake.bucket}/backup/{name}" for name in ("a.parquet", "b.avro", "dump.sql")}
    for path in others:
        lake.store.write(path, b"backup")
    home = table.location()
    lake.rewrite(
        table,
        lambda document: document.update(
            location=f"s3://{lake.bucket}",
            properties={
                "write.data.path": f"{home}/data",
                "write.metadata.path": f"{home}/metadata",
                "icekeeper.orphan_sweep_prefixes": f"s3://{lake.bucket}/backup",
            },
        ),
    )
    outcomes = lake.maintain()
    assert {part.status for part in outcomes.values()} == {Status.REFUSED}
    assert others <= lake.keys()


def test_a_neighbour_with_a_local_location_stops_no_other_pass(lake: Lake) -> None:
    honest = lake.table()
    hostile = lake.table("ns.hostile")
    lake.rewrite(hostile, lambda document: document.update(location=lake.private.as_uri()))
    orphan = f"{honest.location()}/data/orphan.parquet"
    lake.store.write(orphan, b"x")
    outcomes = lake.maintain()
    assert refusals(outcomes) == []
    assert lake.is_untouched()
    assert len(lake.theirs.load_table("ns.t").scan().to_arrow()) == 12


def move_to_double_slash(lake: Lake, name: str) -> None:
    """Move a table to the keys that Spark writes below a location with a trailing slash: ``t//data``."""
    table = lake.theirs.load_table(f"ns.{name}")
    home, store, lengths = table.location(), lake.store, dict[str, int]()

    def respelled(value: Any) -> Any:
        if isinstance(value, dict):
            if value.get("manifest_path") in lengths:
                value["manifest_length"] = lengths[value["manifest_path"]]
            return {key: respelled(each) for key, each in value.items()}
        return value.replace(f"{home}/", f"{home}//") if isinstance(value, str) else value

    found = sorted((item.path for item in store.list(home)), key=lambda path: "/snap-" in path)
    for path in found:
        data = store.read(path)
        if path.endswith(".avro"):  # manifests before their lists
            reader, target = fastavro.reader(io.BytesIO(data)), io.BytesIO()
            metadata = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
            fastavro.writer(target, reader.writer_schema, map(respelled, reader), "deflate", metadata=metadata)
            data = target.getvalue()
            lengths[path] = len(data)
        elif path.endswith(".json"):
            data = data.replace(f"{home}/".encode(), f"{home}//".encode())
            data = data.replace(f'"{home}"'.encode(), f'"{home}/"'.encode())
        store.write(respelled(path), data)
    store.delete(found)
    lake.point(respelled(table.metadata_location), name)


def test_a_table_whose_keys_have_an_empty_part_is_maintained(lake: Lake) -> None:
    """In S3, the key with one slash is another object (rule: any-spelling-protects)."""
    home = lake.table().location()
    lake.table("ns.beside")
    move_to_double_slash(lake, "t")
    store, before = lake.store, lake.keys()
    live = [path for path in before if path.startswith(f"{home}//data/")]
    orphans = {f"{home}{key}/orphan.parquet" for key in ("//data", "/data", "/data/")}
    twin = live[0].replace("//data", "/data")
    for path in {*orphans, twin}:
        store.write(path, PARQUET)
    assert lake.runtime().verify(NAME).problems == ()

    swept = lake.maintain(operations="remove_orphans")["remove_orphans"]
    assert (swept.status, set(swept.files_deleted)) == (Status.SUCCEEDED, orphans)
    assert lake.keys() == before | {twin}, "a reference to its namesake protects it"

    outcomes = lake.maintain()
    assert [name for name, part in outcomes.items() if part.status in (Status.REFUSED, Status.FAILED)] == []
    assert outcomes["compact"].metrics["compact.files_merged"] == 3
    assert set(live) <= set(outcomes["expire_snapshots"].files_deleted)
    assert outcomes["remove_orphans"].files_deleted == (twin,), "whose namesake is gone"
    left = lake.keys()
    assert left & {*live, twin} == set()
    assert lake.runtime().verify(NAME).problems == ()
    (merged,) = (path for path in left - before if path.startswith(f"{home}/data/"))
    assert sorted(pq.read_table(pa.BufferReader(store.read(merged)))["id"].to_pylist()) == sorted([*range(4)] * 3)
    assert lake.maintain("ns.beside")["remove_orphans"].status is not Status.REFUSED


def test_a_glue_table_that_names_a_foreign_bucket_is_refused(moto_server: MotoServer, tmp_path: Path) -> None:
    """Its metadata file is in the writer's bucket, and its location in another bucket (rule: bound-every-table)."""
    s3 = moto_server.client("s3")
    own, others = f"own-{uuid.uuid4()}", f"logs-{uuid.uuid4()}"
    for bucket in (own, others):
        s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket=others, Key="audit.log", Body=b"theirs")
    moto_server.client("glue").create_database(DatabaseInput={"Name": "taken"})
    theirs = pyiceberg.catalog.load_catalog("glue", **moto_server.glue_properties)
    table = theirs.create_table("taken.t", ROWS.schema, location=f"s3://{own}/taken/t")
    store = Storage(moto_server.s3_properties)
    document = json.loads(store.read(table.metadata_location))
    document["location"] = f"s3://{others}"
    store.write(table.metadata_location, json.dumps(document).encode())
    catalog = open_catalog("glue", moto_server.glue_properties, {})
    runtime = Runtime(catalog, SqliteStateStore(tmp_path / "state.db"), environment={})
    done = runtime.maintain(TableName(("taken",), "t"), EAGER, LocalEngine(1), unsafe=True)
    assert {part.status for part in done.operations} == {Status.REFUSED}
    assert f"glue.taken=s3://{own},s3://{others}" in str(done.operations[0].reason)
    assert [item.path for item in store.list(f"s3://{others}")] == [f"s3://{others}/audit.log"]


# A bucket with two names, by an access point or a proxy (rule: second-names-of-buckets).

ACCESS_POINT = "lake-ap-8tyekmigicmhun8n9kwpfur39dnw4use1a-s3alias"


@dataclass
class NamedTwice:
    """A Glue catalog whose bucket ``lake`` also has the name ``alias``, with a namespace for each of two tenants."""

    server: MotoServer
    folder: Path
    alias: str
    lake: str
    victims: str
    others: str
    asked: CountingProxy
    denied: str = ""
    """The path of the object for which every request is answered 403."""

    @property
    def store(self) -> Storage:
        return Storage(self.server.s3_properties)

    def table(self, name: str, location: str) -> Table:
        """A table with three small appends."""
        writer = {} if location.startswith(f"s3://{self.alias}/") else WRITER
        theirs = pyiceberg.catalog.load_catalog("glue", **{**self.server.glue_properties, **writer})
        return with_appends(theirs.create_table(name, ROWS.schema, location=location))

    def sweep(self, rules: str = "") -> OperationOutcome:
        """Sweep the table ``t`` of the other tenant in a new run."""
        catalog = open_catalog("glue", self.server.glue_properties, {ALLOWED_PREFIXES: rules})
        state = SqliteStateStore(self.folder / "state.db")
        runtime = Runtime(catalog, state, environment={ALLOWED_PREFIXES: rules})
        chosen = {**EAGER, "operations": "remove_orphans"}
        return runtime.maintain(TableName((self.others,), "t"), chosen, LocalEngine(1), unsafe=True).operations[0]

    def files(self, bucket: str) -> set[str]:
        return {item.path for item in self.store.list(f"s3://{bucket}")}


@contextmanager
def named_twice(moto_server: MotoServer, folder: Path, alias: str = "mirror") -> Iterator[NamedTwice]:
    lake, tenant = f"lake-{uuid.uuid4()}", uuid.uuid4().hex
    twice = NamedTwice(moto_server, folder, alias, lake, f"v{tenant}", f"t{tenant}", CountingProxy(""))
    moto_server.client("s3").create_bucket(Bucket=lake)
    glue = moto_server.client("glue")
    for found in glue.get_databases()["DatabaseList"]:  # their tables cannot be read here
        glue.delete_database(Name=found["Name"])
    for name in (twice.victims, twice.others):
        glue.create_database(DatabaseInput={"Name": name})

    class Handler(Forwarder):
        upstream = urlsplit(moto_server.endpoint).netloc
        counted = twice.asked

        def forward(self, body: bytes) -> None:
            if self.path == twice.denied:
                self.count()
                denial = b"<Error><Code>AccessDenied</Code></Error>"
                self.answer(403, [], denial, str(len(denial)))
                return
            self.path = re.sub(rf"^/{alias}(?=[/?]|$)", f"/{lake}", self.path)
            super().forward(body)

    with serving(Handler) as endpoint:
        twice.server = MotoServer(endpoint)
        yield twice
    for name in (twice.victims, twice.others):
        glue.delete_database(Name=name)


@pytest.mark.parametrize("alias", [ACCESS_POINT, "mirror"])
def test_a_sweep_through_a_second_name_of_a_bucket_is_refused(
    moto_server: MotoServer, tmp_path: Path, alias: str
) -> None:
    with named_twice(moto_server, tmp_path, alias) as twice:
        twice.table(f"{twice.victims}.victim", f"s3://{twice.lake}/wh/victim")
        twice.table(f"{twice.others}.t", f"s3://{alias}/wh/victim/data")
        before = twice.files(twice.lake)
        assert len([path for path in before if path.endswith(".parquet")]) == 6
        if alias == ACCESS_POINT:
            with pytest.raises(LocationRefused, match=f"s3://{alias} is an access point, a second name of a bucket"):
                twice.sweep()
        rules = f"glue.{twice.others}=s3://{alias}/;glue.{twice.victims}=s3://{twice.lake}/"
        for setting in ["", rules][alias == ACCESS_POINT :]:
            outcome = twice.sweep(setting)
            assert outcome.status is Status.REFUSED
            assert f"s3://{alias} is a second name of s3://{twice.lake}, where" in str(outcome.reason)
        assert twice.files(twice.lake) == before


def test_equal_keys_in_two_buckets_do_not_stop_a_sweep(moto_server: MotoServer, tmp_path: Path) -> None:
    """If listing is allowed only below a prefix, S3 answers 403 for a missing object."""
    prod = f"prod-{uuid.uuid4()}"
    moto_server.client("s3").create_bucket(Bucket=prod)
    with named_twice(moto_server, tmp_path) as twice:
        table = twice.table(f"{twice.victims}.t", f"s3://{prod}/wh/t")
        twice.table(f"{twice.others}.t", f"s3://{twice.lake}/wh/t")
        orphan = f"s3://{twice.lake}/wh/t/data/orphan.parquet"
        path = table.metadata_location.replace(f"s3://{prod}", f"/{twice.lake}")
        for denied in ("", path):
            twice.denied = denied
            twice.store.write(orphan, PARQUET)
            twice.asked.requests.clear()
            outcome = twice.sweep()
            assert (outcome.status, outcome.files_deleted) == (Status.SUCCEEDED, (orphan,))
            assert [item.kind for item in twice.asked.requests if item.path == path] == ["GET"]


def test_nothing_is_deleted_if_two_buckets_may_be_the_same(moto_server: MotoServer, tmp_path: Path) -> None:
    """The operator's rules can separate the two tables (rule: separated-tables-stop-nothing)."""
    prod = f"prod-{uuid.uuid4()}"
    moto_server.client("s3").create_bucket(Bucket=prod)
    with named_twice(moto_server, tmp_path) as twice:
        table = twice.table(f"{twice.victims}.t", f"s3://{prod}/wh/t")
        twice.table(f"{twice.others}.t", f"s3://{twice.lake}/wh/t")
        orphan = f"s3://{twice.lake}/wh/t/data/orphan.parquet"
        twice.store.write(orphan, PARQUET)
        assert twice.sweep().files_deleted == (orphan,)
        twice.store.write(orphan, PARQUET)
        twice.store.delete([table.metadata_location])
        outcome = twice.sweep()
        assert (outcome.status, outcome.files_deleted) == (Status.REFUSED, ())
        assert f"s3://{twice.lake} may be a second name of s3://{prod}, where" in str(outcome.reason)
        outcome = twice.sweep(f"glue.{twice.others}=s3://{twice.lake}/;glue.{twice.victims}=s3://{prod}/")
        assert (outcome.status, outcome.files_deleted) == (Status.SUCCEEDED, (orphan,))


# Symbolic links that lead out of a local warehouse, made before or during a pass (rule: use-the-checked-folder).

SWEEP = {"orphan_older_than_hours": "72", "orphan_max_delete_ratio": "1"}


@pytest.fixture
def private(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir()
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(pa.table({"id": [4711], "part": ["x"]}), folder / name)
    grow_old(folder.iterdir())
    return folder


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    return new_table(local_catalog, tmp_path, appends=3)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("place", "status"),
    [("data", Status.REFUSED), ("metadata/more", Status.SUCCEEDED), ("data/part=x", Status.SUCCEEDED)],
)
def test_a_sweep_does_not_follow_a_linked_folder(
    table: MaintainedTable, private: Path, place: str, status: Status
) -> None:
    before, link = contents(private), table.folder / place
    if link.exists():
        link.rename(link.with_name("moved"))
    link.symlink_to(private)
    outcome = table.run(Operation.REMOVE_ORPHANS, **SWEEP)
    assert (outcome.status, outcome.files_deleted) == (status, ())
    assert contents(private) == before


@pytest.mark.skipif(not local._MAY_HOLD, reason="only Linux opens files by the folder that is held")
@pytest.mark.parametrize("operation", [Operation.COMPACT, Operation.REMOVE_ORPHANS, Operation.EXPIRE_SNAPSHOTS])
def test_a_folder_that_becomes_a_link_between_check_and_use_is_not_followed(
    table: MaintainedTable, private: Path, monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    """The attacker replaces the folder at each use of a file in it, after the check."""
    for name in ("a.parquet", "b.parquet"):
        table.plant(f"data/{name}")
    if operation is Operation.EXPIRE_SNAPSHOTS:
        table.run(Operation.COMPACT)
    before, data, aside = contents(private), table.folder / "data", table.folder / "aside"
    uses: list[str] = []
    real = local.held_folder

    @contextmanager
    def swapped(folder: str, *, make: bool = False) -> Iterator[int | None]:
        if not f"{folder}/".startswith(f"{data}/"):
            with real(folder, make=make) as opened:
                yield opened
            return
        uses.append(folder)
        os.rename(data, aside)
        data.symlink_to(private)
        try:
            with real(folder, make=make) as opened:
                yield opened
        finally:
            data.unlink()
            os.rename(aside, data)

    for room in ("local_files", "storage"):
        monkeypatch.setattr(f"icekeeper.storage.{room}.held_folder", swapped)
    settings = {"snapshot_retention_hours": "0", "max_snapshots_to_keep": "1", **SWEEP}
    table.run(operation, **settings)
    assert uses
    assert contents(private) == before
    monkeypatch.undo()
    assert Storage(table.catalog.load(NAME).io_properties).allows(str(data))
