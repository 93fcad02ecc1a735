"""Policy files, inventories, control documents and state, and who reads them."""

from __future__ import annotations

import io
import json
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.hostile.packed import gzipped


def policy_file(_: Path) -> Any:
    from icekeeper.policy.policy_file import parse_policy_file

    laughs = "a0: &a0 ha\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    rules = "rules:\n" + "- settings:\n    operations: compact\n"
    return lambda data: parse_policy_file(data.decode(), "P"), {
        "a billion laughs": lambda: laughs.encode() + rules.encode(),
        "a list of lists": lambda: ("rules: " + "[" * 100_000 + "]" * 100_000).encode(),
        "100,000 levels of lists": lambda: ("rules:\n" + "- " * 100_000 + "x").encode(),
        "900 levels of lists": lambda: ("rules:\n" + "- " * 900 + "x").encode(),
        "2,000 levels of fields": lambda: ("rules:\n" + "".join(" " * n + "a:\n" for n in range(2_000))).encode(),
        "a tag of Python": lambda: b"rules: !!python/object/apply:os.system [id]",
        "a nul": lambda: b"rules:\0",
        "a text without end": lambda: b'rules: "' + b"a" * 1_000_000,
        "a key that stands twice": lambda: rules.encode() * 2,
        "nothing": lambda: b"",
    }


def inventory(folder: Path) -> Any:
    from icekeeper.operations.orphans.inventory import InventoryFiles
    from icekeeper.storage.storage import Storage

    def read(data: bytes) -> None:
        name, _, content = data.partition(b"|")
        path = folder / name.decode()
        path.write_bytes(content)
        for _found in InventoryFiles(Storage({}), str(path), "s3://b/t").objects():
            pass

    head = b"path,size,last_modified\n"
    line = b"s3://b/t/f,%b,%b\n"
    return read, {
        "a line of 2 GB": lambda: b"i.csv.gz|" + gzipped(head, b"a", 2**31),
        "a line of 2 GB, plain": lambda: b"i.txt.gz|" + gzipped(b"s3://b/t/", b"a", 2**31),
        "a quoted value of 2 GB": lambda: b"i.csv.gz|" + gzipped(head + b'"', b"a\n", 2**31),
        "bad gzip": lambda: b"i.csv.gz|\x1f\x8b" + b"x" * 99,
        "gzip with other bytes within": lambda: b"i.csv.gz|" + gzipped(head * 99)[:14] + b"\xff" * 30,
        "cut gzip": lambda: b"i.csv.gz|" + gzipped(head * 99)[:-20],
        "no UTF-8": lambda: b"i.csv|" + head + b"\xff\xff,1,\n",
        "a size of 5,000 digits": lambda: b"i.csv|" + head + line % (b"9" * 5_000, b""),
        "a date that is none": lambda: b"i.csv|" + head + line % (b"1", b"yesterday"),
        "the year 1": lambda: b"i.csv|" + head + line % (b"1", b"0001-01-01T00:00:00+14:00"),
        "a nul": lambda: b"i.csv|" + head + b"s3://b/t/\0,1,\n",
        "no Parquet": lambda: b"i.parquet|" + b"x" * 99,
        "another column": lambda: b"i.parquet|" + parquet({"path": [[1]], "size": [1]}),
        "no ORC": lambda: b"i.orc|" + b"x" * 99,
    }


def parquet(columns: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def inventory_manifest(folder: Path) -> Any:
    from icekeeper.operations.orphans.inventory import InventoryFiles
    from icekeeper.storage.storage import Storage

    path = folder / "manifest.json"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        InventoryFiles(Storage({}), str(path), "s3://b/t").parts()

    return read, {
        **json_bombs(),
        "60 MB of files": lambda: b'{"fileFormat":"ORC","files":[' + b'{"key":""},' * 5_000_000 + b"]}",
        "files that are numbers": lambda: b'{"fileFormat":"ORC","files":[1]}',
        "files that are a number": lambda: b'{"fileFormat":"ORC","files":1}',
    }


def json_bombs() -> dict[str, Callable[[], bytes]]:
    return {
        "100,000 lists in each other": lambda: b"[" * 100_000 + b"]" * 100_000,
        "100,000 objects in each other": lambda: b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        "60 MB of empty lists": lambda: b"[" + b"[]," * (20 * 2**20) + b"0]",
        "a number of 5,000 digits": lambda: b"9" * 5_000,
        "no UTF-8": lambda: b'"\xff"',
        "nothing": lambda: b"",
        "a nul": lambda: b"\0",
    }


def control_document(folder: Path) -> Any:
    from pydantic import BaseModel

    from icekeeper.pipeline.control_bucket import ControlBucket

    class Shape(BaseModel):
        kind: str

    bucket = ControlBucket(str(folder))

    def read(data: bytes) -> None:
        (folder / "d.json").write_bytes(data)
        bucket.find_object("d.json", Shape)

    return read, {**json_bombs(), "another shape": lambda: b'{"kind":7}', "a list": lambda: b"[]"}


def state_item(_: Path) -> Any:
    from icekeeper.state.dynamodb.items import decoded
    from icekeeper.state.dynamodb.store import _claims, _look
    from icekeeper.state.dynamodb.table import read_paths

    class Table:
        def __init__(self, item: Any) -> None:
            self.item = item

        def query(self, pk: str) -> list[Any]:
            return [self.item]

    def read(data: bytes) -> None:
        name, _, value = data.partition(b"|")
        key = {"pk": {"S": "p"}, "sk": {"S": "s"}}
        if name == b"paths":
            table: Any = Table(decoded({**key, "paths": {"B": value}}))
            assert all(isinstance(path, str) for paths in read_paths(table, "l") for path in paths)
            return
        text = {"S": value.decode()}
        whole = {name: {"S": "x"} for name in ("catalog", "warehouse", "uuid", "location")}
        whole |= dict.fromkeys(("look", "folders", "data_roots"), text)
        whole["entry"] = {"S": '["c","w","n.t"]'}
        item = decoded({**key, **whole, "seen_ms": {"N": "1"}, "seen_sequence_number": {"N": "1"}})
        {b"claims": _claims, b"look": _look}[name](item)

    deep = b"[" * 100_000 + b"]" * 100_000
    return read, {
        "300 MB of paths": lambda: b"paths|" + zlib.compress(b'["' + b"a" * (300 * 2**20) + b'"]'),
        "bad paths": lambda: b"paths|" + b"x" * 99,
        "cut paths": lambda: b"paths|" + zlib.compress(b'["a"]' * 99)[:-9],
        "paths in each other": lambda: b"paths|" + zlib.compress(deep),
        "claims in each other": lambda: b"claims|" + deep,
        "a look in each other": lambda: b"look|" + deep,
        "a look that is a number": lambda: b"look|7",
        "folders that are lists": lambda: b"claims|[[1]]",
    }


def state_file(folder: Path) -> Any:
    from icekeeper.model import TableName
    from icekeeper.state.identity import TableIdentity
    from icekeeper.state.sqlite.store import SqliteStateStore
    from icekeeper.state.store import MaintenanceRequest

    path = folder / "state.db"
    identity = TableIdentity("c", "w", TableName.parse("n.t"), "u", "s3://b/t")
    store = SqliteStateStore(path)
    store.requests.file(MaintenanceRequest(identity=identity, requested_ms=1, settings={"a": "b"}))
    deep = "[" * 100_000 + "]" * 100_000

    def read(data: bytes) -> None:
        if data.startswith(b"settings|"):
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("UPDATE requests SET settings = ?", (data.decode().partition("|")[2],))
                connection.commit()
            store.requests.pending()
        else:
            other = folder / "other.db"
            other.write_bytes(data)
            SqliteStateStore(other).requests.pending()

    return read, {
        "settings in each other": lambda: b"settings|" + deep.encode(),
        "settings that are a number": lambda: b"settings|7",
        "settings with a number of 5,000 digits": lambda: b'settings|{"a":' + b"9" * 5_000 + b"}",
        "no database": lambda: b"x" * 9_999,
        "a database of its first page": lambda: path.read_bytes()[:4096],
        "settings with a lone surrogate": lambda: b'settings|{"a":"\\ud800"}',
        "json": lambda: json.dumps({}).encode(),
    }
