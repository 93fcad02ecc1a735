"""Sound files with some bytes changed, cut or doubled: an error of ours or an answer, and no other error (rule 275).

Manifests are damaged in ``test_avro_values``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from icekeeper.errors import MaintenanceError
from icekeeper.metadata.avro_files import write_avro
from icekeeper.metadata.avro_schemas import manifest_list_schema
from icekeeper.metadata.document_files import parse_document
from icekeeper.metadata.manifest_read import decode_manifest_list
from icekeeper.metadata.puffin import decode_footer, encode_puffin
from icekeeper.operations.orphans.inventory import InventoryFiles
from icekeeper.policy.policy_file import parse_policy_file
from icekeeper.row_group_copy.footer import Footer, read_footer
from icekeeper.row_group_copy.footer_structs import CannotCopy
from icekeeper.storage.storage import Storage
from support.examples import examples
from support.hostile.avro import gzipped
from support.hostile.parsers import DOCUMENT

LIST = manifest_list_schema(2)
LINE: dict[str, Any] = {
    **{field["name"]: 7 for field in LIST["fields"]},
    "manifest_path": "s3://b/m.avro",
    "content": 0,
    "partitions": [{"contains_null": False, "contains_nan": None, "lower_bound": b"a", "upper_bound": None}],
    "key_metadata": None,
}
CSV = b"path,size,last_modified\n" + b"s3://b/t/f,1,2026-01-01T00:00:00Z\n" * 20
POLICY = b"rules:\n- namespace: sales\n  settings:\n    operations: compact\n    target_file_size_mb: 64\n"


def parquet() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"path": ["s3://b/t/f"] * 20, "size": range(20)}), sink)
    return sink.getvalue()


def listed(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)
    for _ in InventoryFiles(Storage({}), str(folder / name), "s3://b/t").objects():
        pass


def footer(folder: Path, data: bytes) -> None:
    (folder / "f.parquet").write_bytes(data)
    found = read_footer(str(folder / "f.parquet"), Storage({}))
    if isinstance(found, Footer):
        found.metadata()


Parse = Callable[[Path, bytes], object]
FILES: dict[str, tuple[bytes, Parse]] = {
    "metadata.json": (json.dumps(DOCUMENT).encode(), lambda _, data: parse_document(data, "s3://b/m.json")),
    "gz.metadata.json": (gzipped(json.dumps(DOCUMENT).encode()), lambda _, data: parse_document(data, "s3://b/m.json")),
    "manifest list": (write_avro(LIST, [LINE] * 5, {}), lambda _, data: decode_manifest_list(data, "s3://b/l.avro")),
    "Puffin": (
        encode_puffin([("s3://b/f", BitMap64(range(9)))], {"a": "b"}).data,
        lambda _, data: decode_footer(data, "s3://b/p.puffin"),
    ),
    "Parquet footer": (parquet(), footer),
    "CSV": (CSV, lambda folder, data: listed(folder, "i.csv", data)),
    "CSV.gz": (gzipped(CSV), lambda folder, data: listed(folder, "i.csv.gz", data)),
    "Parquet": (parquet(), lambda folder, data: listed(folder, "i.parquet", data)),
    "policy": (POLICY, lambda _, data: parse_policy_file(data.decode(errors="replace"), "P")),
}


@st.composite
def changed(draw: st.DrawFn, data: bytes) -> bytes:
    """Up to four places of the bytes are others, gone, or there twice."""
    found = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(found) - 1)))
        end = at + draw(st.integers(1, 12))
        way = draw(st.sampled_from(["other", "other", "gone", "twice", "cut"]))
        if way == "other":
            found[at:end] = draw(st.binary(min_size=1, max_size=12))
        elif way == "gone":
            del found[at:end]
        elif way == "twice":
            found[at:at] = found[at:end]
        else:
            del found[at:]
    return bytes(found)


@pytest.mark.parametrize("kind", FILES)
@settings(
    max_examples=examples(40),
    deadline=timedelta(seconds=10),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_changed_bytes_of_sound_files(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    sound, parse = FILES[kind]
    parse(tmp_path, sound)
    told = ""
    try:
        parse(tmp_path, data.draw(changed(sound)))
    except (MaintenanceError, CannotCopy) as error:
        told = str(error)
    assert "\n" not in told
