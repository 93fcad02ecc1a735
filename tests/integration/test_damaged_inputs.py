"""Data files that are unreadable, hold invalid text, or arrive truncated."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType

from icekeeper.catalogs.catalog import identity_of
from icekeeper.errors import StorageError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import DataFile
from icekeeper.operations.compaction.work import exchange
from icekeeper.operations.compaction.work.rewrite import rewrite_group
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassStatus, Status
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.read_task import InputFile, ReadableFile
from icekeeper.state.findings import RETRY_MS
from icekeeper.storage import arrow_files as whole_reads
from icekeeper.storage.storage import Storage
from support.clustered_tables import column
from support.copied import flipped, pages
from support.maintained_table import NAME, MaintainedTable, maintained_table
from support.proxies import served_by
from support.rewrites import rows, struct, task

# A pass names unreadable files and merges the others.

TWO_OF_SIX = (1, 4)
FILES, BAD = 7, 3


def damage(path: Path) -> None:
    """Break the first page's header and keep the footer."""
    data = bytearray(path.read_bytes())
    data[4:12] = b"\xff" * 8
    path.write_bytes(bytes(data))


def remove(path: Path) -> None:
    path.unlink()


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def of_another_type(path: Path) -> None:
    """``id`` is text."""
    overwrite(path, pa.table({"id": ["30", "31"], "part": ["p", "p"]}), with_ids=True)


def short_of_a_row(path: Path) -> None:
    overwrite(path, pa.table({"id": [30], "part": ["p"]}), with_ids=True)


def without_ids(path: Path) -> None:
    """The columns are in another order than in the table, so their positions do not identify them."""
    overwrite(path, pa.table({"part": ["p", "p"], "id": [30, 31]}), with_ids=False)


def overwrite(path: Path, rows: pa.Table, *, with_ids: bool) -> None:
    """Overwrite a data file of the table with other rows."""
    ids = {"id": b"1", "part": b"2"}
    fields = [f.with_metadata({b"PARQUET:field_id": ids[f.name]} if with_ids else {}) for f in rows.schema]
    pq.write_table(rows.cast(pa.schema(fields)), path)


def on_disk(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def filled(table: MaintainedTable, files: int) -> list[str]:
    """Append files of two rows whose pages have checksums, as parquet-mr's; return their paths in the order of ids."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pq, "ParquetWriter", partial(pq.ParquetWriter, write_page_checksum=True))
        table.fill(files)
    return [file.file_path for file in sorted(table.data_files(), key=lambda file: column(file)[0])]


def flip_a_bit(path: Path) -> None:
    """Flip the last bit of the first page: the codec still decodes its values."""
    header, _, end = next(pages(path))
    assert header.crc is not None
    flipped(path, path, end * 8 - 1)


@pytest.mark.parametrize("spoil", [damage, flip_a_bit])
@pytest.mark.parametrize("copied", ["1", "none"], ids=["copied", "decoded"])
def test_the_other_files_of_a_bin_with_damaged_files_are_merged(
    table: MaintainedTable, copied: str, spoil: Callable[[Path], None]
) -> None:
    """Four of six files are merged; both damaged files are still in the table, and the summary names the first
    (rule: leave-out-unreadable-files)."""
    files = filled(table, 6)
    damaged = [files[number] for number in TWO_OF_SIX]
    for path in damaged:
        spoil(on_disk(path))
    outcome = table.run(Operation.COMPACT, min_row_group_copy_bytes=copied)
    assert (outcome.status, outcome.reason) == (Status.SUCCEEDED, None)
    expected = f"compacted 4 files into 1 (across 1 bins); left 2 file(s) out: file {damaged[0]} cannot be read: "
    assert outcome.summary.startswith(expected)
    assert outcome.metrics["compact.bins_failed"] == 0
    left = {file.file_path: file for file in table.data_files()}
    assert set(damaged) < set(left)
    (merged,) = (file for path, file in left.items() if path not in damaged)
    assert sorted(column(merged)) == [0, 1, 20, 21, 30, 31, 50, 51]
    assert len([path for path in table.files() if path.endswith(".parquet")]) == 7  # no file of a failed attempt


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (remove, "{path} does not exist"),
        (damage, "file {path} cannot be read: Couldn't deserialize thrift"),
        (cut_off, "file {path} cannot be read: Parquet magic bytes not found"),
        (of_another_type, "file {path} cannot be read: column id is string in a file, which cannot be read as int64"),
        (short_of_a_row, "data file {path} has 1 rows, but its manifest says 2"),
        (without_ids, "file {path} cannot be read: a file has no field ids"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_bad_file_never_delays_the_others(
    table: MaintainedTable, spoil: Callable[[Path], None], expected: str
) -> None:
    """Of three passes with the default policy, the first merges six of seven files, the others do nothing
    (rule: leave-out-unreadable-files)."""
    bad = filled(table, FILES)[BAD]
    spoil(on_disk(bad))
    outcome = table.runtime.maintain(NAME, {}, table.engine)
    assert outcome.status is PassStatus.SUCCEEDED
    (compacted,) = (operation for operation in outcome.operations if operation.operation is Operation.COMPACT)
    sentence = expected.format(path=bad)
    assert compacted.summary.startswith(f"compacted 6 files into 1 (across 1 bins); left 1 file(s) out: {sentence}")
    after = table.data_files()
    assert len(after) == 2
    (merged,) = (file for file in after if file.file_path != bad)
    assert sorted(column(merged)) == sorted(n for i in range(FILES) if i != BAD for n in (i * 10, i * 10 + 1))
    head = table.metadata_location
    for _ in range(2):
        found = table.runtime.detect()
        assert (found.proposals, [skip.is_error for skip in found.skipped]) == ((), [False])
        (warning,) = (skip.warning for skip in found.skipped)
        assert (warning or "").startswith(f"1 file is left alone, except for one attempt a week: {sentence}")
        assert found.to_json()["skipped"][0]["warning"] == warning
        assert table.runtime.afresh.health(NAME).warnings == {"unreadable_files": warning}
        again = table.runtime.maintain(NAME, {}, table.engine)
        assert again.status is PassStatus.SUCCEEDED
        assert table.metadata_location == head


def left_out(table: MaintainedTable, **settings: str) -> tuple[int, list[str]]:
    """Run compaction; return how many files it merged, and which files the state records as unreadable."""
    outcome = table.run(Operation.COMPACT, **settings)
    known = table.state.findings.of_table(identity_of(table.catalog, table.loaded))
    return int(outcome.metrics.get("compact.files_merged", 0)), list(known)


def test_a_file_without_field_ids_but_with_the_tables_columns_is_merged(table: MaintainedTable) -> None:
    """Its columns are read by position, as in Iceberg-Java (rule: columns-by-field-id)."""
    bad = filled(table, 4)[BAD]
    overwrite(on_disk(bad), pa.table({"id": [30, 31], "part": ["p", "p"]}), with_ids=False)
    outcome = table.run(Operation.COMPACT, min_row_group_copy_bytes="1")
    assert (outcome.status, outcome.metrics["compact.files_merged"]) == (Status.SUCCEEDED, 4)
    assert "left" not in outcome.summary
    assert table.ids() == [0, 1, 10, 11, 20, 21, 30, 31]


def test_unreadable_files_are_recorded_and_retried_weekly(table: MaintainedTable) -> None:
    """The next passes do not read it, also if new files arrive; the pass of a week later finds it restored
    (rule: leave-out-unreadable-files)."""
    bad = filled(table, 4)[BAD]
    content = on_disk(bad).read_bytes()
    on_disk(bad).unlink()
    assert left_out(table) == (3, [bad])
    on_disk(bad).write_bytes(content)
    table.fill(2, start=10)
    table.late_ms = RETRY_MS - HOUR_MS
    assert left_out(table) == (3, [bad])
    assert bad in {file.file_path for file in table.data_files()}
    table.fill(2, start=20)
    table.late_ms = RETRY_MS + HOUR_MS
    assert left_out(table) == (3, [])
    assert bad not in {file.file_path for file in table.data_files()}
    assert table.ids() == [n for i in (0, 1, 2, 3, 10, 11, 20, 21) for n in (i * 10, i * 10 + 1)]
    assert table.runtime.afresh.health(NAME).warnings == {}


def test_a_rewrite_of_all_files_retries_unreadable_files_at_once(table: MaintainedTable) -> None:
    """This is for operators who have restored a file."""
    bad = filled(table, 4)[BAD]
    content = on_disk(bad).read_bytes()
    on_disk(bad).unlink()
    on_disk(bad).mkdir()  # a local path that cannot be opened stands for 403 and throttling: it is not recorded
    outcome = table.run(Operation.COMPACT)
    assert outcome.status is Status.FAILED
    assert (outcome.reason or "").startswith("1 bin(s) failed: ")
    assert len(table.data_files()) == 4
    assert table.state.findings.of_table(identity_of(table.catalog, table.loaded)) == {}

    on_disk(bad).rmdir()
    assert left_out(table) == (3, [bad])
    on_disk(bad).write_bytes(content)
    assert left_out(table) == (0, [bad])
    assert left_out(table, rewrite_all="true") == (2, [])
    assert table.ids() == [0, 1, 10, 11, 20, 21, 30, 31]


def test_unreadable_files_are_not_opened_before_the_retry(table: MaintainedTable) -> None:
    """The reason is still that of the first pass, which shows that no pass opened the file."""
    bad = filled(table, 4)[BAD]
    damage(on_disk(bad))
    assert left_out(table) == (3, [bad])
    table.fill(2, start=10)
    on_disk(bad).unlink()
    outcome = table.run(Operation.COMPACT)
    assert outcome.summary.startswith("compacted 2 files into 1 (across 1 bins); left 1 file(s) unchanged: ")
    assert "cannot be read: Couldn't deserialize thrift" in outcome.summary
    assert outcome.metrics["compact.files_unsupported"] == 1


@pytest.mark.parametrize("change", ["schema", "mapping", "other"])
def test_a_changed_schema_or_name_mapping_retries_unreadable_files(table: MaintainedTable, change: str) -> None:
    """A file without ids is read once the table has a name mapping (rule: leave-out-unreadable-files)."""
    bad = filled(table, 4)[BAD]
    without_ids(on_disk(bad))
    assert left_out(table) == (3, [bad])
    table.fill(2, start=10)
    if change == "mapping":
        mapping = [{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["part"]}]
        with table.table.transaction() as transaction:
            transaction.set_properties({"schema.name-mapping.default": json.dumps(mapping)})
        assert left_out(table) == (3, [])
        assert table.ids() == [0, 1, 10, 11, 20, 21, 30, 31, 100, 101, 110, 111]
        return
    if change == "schema":
        with table.table.update_schema() as update:
            update.add_column("more", LongType())
    else:
        with table.table.transaction() as transaction:
            transaction.set_properties({"anything": "else"})
    on_disk(bad).unlink()  # its reason shows whether it is opened
    assert left_out(table) == (2, [bad])
    (known,) = table.state.findings.of_table(identity_of(table.catalog, table.loaded)).values()
    assert known.why.endswith("does not exist") is (change == "schema")


def test_a_pass_but_no_dry_run_forgets_unreadable_files_that_left_the_table(table: MaintainedTable) -> None:
    bad = filled(table, 4)[BAD]
    damage(on_disk(bad))
    identity = identity_of(table.catalog, table.loaded)
    table.maintain("compact", dry_run=True)
    assert table.state.findings.of_table(identity) == {}
    assert left_out(table) == (3, [bad])
    table.table.delete("id >= 30")
    table.maintain("compact", dry_run=True)
    assert list(table.state.findings.of_table(identity)) == [bad]
    assert left_out(table) == (0, [])


# Some writers write text that is not UTF-8, and Iceberg-Java reads it: passes keep its bytes.

TEXTS = [b"\xff\xfe\x80p", b"a\x80", b"", "é€".encode(), b"zz\xed\xa0\x80"]
"""An invalid lead byte, a lone continuation byte, an empty text, a valid text, and a surrogate."""
SOUND = (0, 10, 20)
NO_BOUNDS = "write.metadata.metrics.column.part"


@pytest.fixture
def created_table(tmp_path: Path) -> Iterator[MaintainedTable]:
    with maintained_table(tmp_path) as made:
        made.create()
        yield made


def spoil(created_table: MaintainedTable, *, bounds: bool = False) -> None:
    """Append three files of two rows, and a file of invalid texts, whose entry may have the bounds of valid texts."""
    for start in SOUND:
        created_table.append(start, start + 1)
    with created_table.table.transaction() as transaction:
        transaction.set_properties({NO_BOUNDS: "truncate(16)" if bounds else "counts"})
    created_table.append(*range(100, 100 + len(TEXTS)), part="p" * 16)
    with created_table.table.transaction() as transaction:
        transaction.remove_properties(NO_BOUNDS)
    (file,) = (f for f in created_table.data_files() if f.record_count == len(TEXTS))
    fields = [("id", pa.int64(), b"1"), ("part", pa.string(), b"2")]
    schema = pa.schema([pa.field(name, kind, metadata={b"PARQUET:field_id": i}) for name, kind, i in fields])
    columns = [pa.array(range(100, 100 + len(TEXTS)), pa.int64()), pa.array(TEXTS, pa.binary()).view(pa.string())]
    path = Path(file.file_path.removeprefix("file://"))
    rows = pa.table(columns, schema=schema)
    length = written_padded(path, rows, 0)
    # The file needs the length that its entry has; otherwise it would not be copied.
    sizes = (written_padded(path, rows, file.file_size_in_bytes - length - less) for less in range(4))
    assert file.file_size_in_bytes in sizes


def written_padded(path: Path, rows: pa.Table, padding: int) -> int:
    """Write a file with ``padding`` extra bytes in its footer and return its size."""
    with pq.ParquetWriter(path, rows.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({"padding": "x" * padding})
    return path.stat().st_size


def bytes_of(files: list[DataFile]) -> dict[int, bytes]:
    """The bytes of every row's text in the files, by id."""
    found: dict[int, bytes] = {}
    for file in files:
        rows = pq.read_table(file.file_path.removeprefix("file://"))
        texts = rows["part"].cast(pa.binary())
        found |= dict(zip(rows["id"].to_pylist(), texts.to_pylist(), strict=True))
    return found


EXPECTED = {n: b"p" for start in SOUND for n in (start, start + 1)} | dict(enumerate(TEXTS, 100))


@pytest.mark.parametrize(
    ("settings", "proof"),
    [
        ({"min_row_group_copy_bytes": "none"}, "counts"),
        ({"min_row_group_copy_bytes": "none"}, "full"),
        ({"strategy": "sort", "sort_order": "part desc"}, "full"),
        ({"strategy": "sort", "sort_order": "truncate(2, part)"}, "full"),
        ({"strategy": "sort", "sort_order": "bucket(4, part)"}, "full"),
        ({"strategy": "zorder", "sort_order": "part,id"}, "full"),
    ],
    ids=["decoded, counted", "decoded", "sorted", "truncated", "bucketed", "z-ordered"],
)
def test_a_rewrite_keeps_text_byte_for_byte(
    created_table: MaintainedTable, settings: dict[str, str], proof: str
) -> None:
    """The entry has no bounds of that column, because Iceberg-Java cannot read invalid bounds; other bounds remain."""
    spoil(created_table)
    outcome = created_table.run(Operation.COMPACT, proof=proof, **settings)
    assert (outcome.status, outcome.metrics["compact.files_merged"]) == (Status.SUCCEEDED, 4)
    (file,) = created_table.data_files()
    assert bytes_of([file]) == EXPECTED
    assert (file.value_counts or {})[2] == len(EXPECTED)
    assert set(file.lower_bounds or {}) == set(file.upper_bounds or {}) == {1}


def test_a_row_group_copy_keeps_text_byte_for_byte(created_table: MaintainedTable) -> None:
    spoil(created_table, bounds=True)
    outcome = created_table.run(Operation.COMPACT, proof="full", min_row_group_copy_bytes="1")
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics["compact.bytes_copied"] > 0
    (file,) = created_table.data_files()
    assert pq.ParquetFile(file.file_path.removeprefix("file://")).num_row_groups == 4
    assert bytes_of([file]) == EXPECTED


def test_all_workers_sort_text_as_bytes(created_table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "RANGE_BYTES", 1)
    spoil(created_table)
    outcome = created_table.run(Operation.COMPACT, strategy="sort", sort_order="part", target_file_size_mb="0.001")
    assert outcome.status is Status.SUCCEEDED
    read = bytes_of(created_table.data_files())
    assert read == EXPECTED


def test_rows_with_invalid_text_keep_their_partition_spec(created_table: MaintainedTable) -> None:
    """Manifests hold a partition's value as text, so these rows cannot move to the new spec."""
    with created_table.table.transaction() as transaction:
        transaction.set_properties({NO_BOUNDS: "counts"})
    spoil(created_table)
    with created_table.table.update_spec() as update:
        update.add_field("part", IdentityTransform())
    outcome = created_table.run(Operation.COMPACT)
    assert outcome.status is Status.SUCCEEDED
    assert {file.partition for file in created_table.data_files()} == {()}
    assert bytes_of(created_table.data_files()) == EXPECTED


def test_an_avro_file_with_invalid_text_is_reported_as_unreadable(tmp_path: Path) -> None:
    """Otherwise it would be read with other text."""
    column = {"name": "part", "type": ["null", "string"], "default": None, "field-id": 2}
    sink = io.BytesIO()
    fastavro.writer(sink, {"type": "record", "name": "r", "fields": [column]}, [{"part": "QQQQ"}], codec="null")
    path = tmp_path / "in.avro"
    path.write_bytes(sink.getvalue().replace(b"QQQQ", TEXTS[0]))
    source = InputFile(str(path), 1, path.stat().st_size, "AVRO")
    result = rewrite_group(task(struct((2, "part", "string")), [source], tmp_path))
    assert (result.written, list(result.unreadable)) == ((), [str(path)])


def test_a_rewrite_of_an_orc_file_keeps_text_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "in.orc"
    fields = [pa.field("part", pa.string(), metadata={b"iceberg.id": b"2"})]
    rows = pa.table([pa.array(TEXTS, pa.binary()).view(pa.string())], schema=pa.schema(fields))
    orc.write_table(rows, path)
    source = InputFile(str(path), len(TEXTS), path.stat().st_size, "ORC")
    result = rewrite_group(task(struct((2, "part", "string")), [source], tmp_path))
    (file,) = result.written
    assert pq.read_table(file.file_path)["part"].cast(pa.binary()).to_pylist() == TEXTS
    assert file.lower_bounds == {}


# A store, or a proxy in front of it, answers a read with fewer bytes than requested.

SCHEMA = struct((1, "id", "long"), (2, "value", "double"))
PATH = "s3://bucket/file"


@contextmanager
def store(data: bytes, shorten: Callable[[int, bytes], bytes]) -> Iterator[Storage]:
    """Serve one object over S3's protocol; ``shorten`` gets the start and the bytes of each answer."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()

        def do_GET(self) -> None:
            requested = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
            assert requested is not None
            start, end = int(requested[1]), int(requested[2])
            body = shorten(start, data[start : end + 1])
            self.send_response(206)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(data)}")
            self.end_headers()
            self.wfile.write(body)

    with served_by(Handler) as endpoint:
        yield Storage({"s3.endpoint": endpoint, "s3.access-key-id": "a", "s3.secret-access-key": "b"})


def test_a_truncated_read_raises_an_error() -> None:
    message = r"fewer than the 1000 bytes from 0 of s3://bucket/file"
    missing = [1, 7, 8, 500, 999]
    with store(bytes(1000), lambda start, body: body[: -missing[-1]]) as storage:
        while missing:
            with pytest.raises(StorageError, match=message):
                storage.read(PATH)
            missing.pop()


def test_a_truncated_read_is_repeated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        whole_reads, "os", SimpleNamespace(urandom=bytes)
    )  # a random mark ends like the data once in 256 times
    answers: list[int] = []

    def first_short(start: int, body: bytes) -> bytes:
        answers.append(start)
        return body[:-1] if len(answers) == 1 else body

    data = bytes(range(256)) * 4
    with store(data, first_short) as storage, storage.open_input(PATH) as stream:
        assert stream.read() == data
    assert answers == [0, 1016, 0]  # first only the end, because data may equal the mark by chance


def test_every_byte_can_be_the_last_of_a_read() -> None:
    """This includes the byte that marks the end of the buffer; reads past the end are shorter."""
    data = bytes(range(256))
    with store(data, lambda start, body: body) as storage, storage.open_input(PATH) as stream:
        assert [stream.read_at(1, at) for at in range(256)] == [bytes([at]) for at in range(256)]
        assert stream.read_at(10, 250) == data[250:]
        assert stream.seek(0) == 0
        assert stream.read() == data
        assert (stream.read(), stream.size()) == (b"", 256)


def test_a_truncated_read_of_a_data_file_yields_no_values() -> None:
    """Without compression, no other check fails: rows of a truncated answer had values that no writer wrote."""
    sink = io.BytesIO()
    table = rows(SCHEMA, {"id": range(1000), "value": [float(n) for n in range(1000)]})
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    half = sink.tell() // 2

    def read(storage: Storage) -> pa.Table:
        return pa.Table.from_batches(projected_rows(ReadableFile(PATH), SCHEMA, storage))

    with store(sink.getvalue(), lambda start, body: body) as storage:
        assert read(storage) == table
    with (
        store(sink.getvalue(), lambda start, body: body[:-100] if start < half else body) as storage,
        pytest.raises(StorageError, match="fewer than the") as caught,
    ):
        read(storage)
    assert type(caught.value) is StorageError  # the file may be sound (rule: leave-out-unreadable-files)
