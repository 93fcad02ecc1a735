"""Tables of which only metadata matter: many manifests, a long history, many orphans.  No data file has bytes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

from benchmarks.tables.rows import schema_of
from benchmarks.tables.table_writer import TableWriter
from icekeeper.metadata.manifest_write import EntryCopier, ManifestAssembler, entry_blocks
from icekeeper.model import DataFile, FileContent, ManifestContent, ManifestFile

_COLUMNS = 15
_PARTITIONS = 100
_MB = 1024 * 1024
_DAY = {"source-id": 1, "field-id": 1000, "name": "p", "transform": "identity"}
_NUMBERS = schema_of([("p", "int"), *((f"c{n}", "long") for n in range(2, _COLUMNS + 1))])
_MARK = b"manifest-00000"
# So many that the same statistics never come twice within what deflate looks back to.
_TEMPLATES = 20
_ORPHAN_EVERY = 100
_ORPHAN_DAYS = 1000
_FILES_A_MANIFEST = 10_000
_OLD_S = 1_600_000_000


def _described_files(folder: Path, entries: int, seed: int) -> Iterator[DataFile]:
    """Files of every partition, with statistics like those of real columns; every tenth file is small."""
    chance, every = random.Random(seed), range(1, _COLUMNS + 1)
    for number in range(entries):
        rows = chance.randrange(50_000, 90_000)
        size = chance.randrange(_MB, 20 * _MB) if number % 10 == 0 else chance.randrange(200 * _MB, 280 * _MB)
        yield DataFile(
            content=FileContent.DATA,
            file_path=f"{folder}/data/{_MARK.decode()}/{chance.getrandbits(128):032x}-{number:05}.parquet",
            file_format="PARQUET",
            partition=(number % _PARTITIONS,),
            record_count=rows,
            file_size_in_bytes=size,
            column_sizes={c: chance.randrange(10**4, 10**6) for c in every},
            value_counts=dict.fromkeys(every, rows),
            null_value_counts={c: chance.randrange(100) if c % 4 == 0 else 0 for c in every},
            nan_value_counts={},
            lower_bounds={c: chance.getrandbits(60).to_bytes(8, "little")[: 4 if c == 1 else 8] for c in every},
            upper_bounds={c: chance.getrandbits(60).to_bytes(8, "little")[: 4 if c == 1 else 8] for c in every},
            split_offsets=(4,),
        )


def make_many_manifests(folder: Path, manifests: int, entries: int) -> None:
    """As hourly commits leave them: every manifest holds as many files in every partition; one snapshot lists all."""
    writer = TableWriter(folder, _NUMBERS, partition_fields=[_DAY])
    metadata = writer.metadata
    copier, assembler = EntryCopier(metadata, 0), ManifestAssembler(metadata, 0, ManifestContent.DATA)
    templates = []
    for seed in range(min(_TEMPLATES, manifests)):
        made = writer.encoded(_described_files(folder, entries, seed))
        templates.append(list(copier.copy(made.data, made.manifest)))
    listed = []
    for number in range(manifests):
        mark = f"manifest-{number:05}".encode()
        own = [entry._replace(data=entry.data.replace(_MARK, mark)) for entry in templates[number % len(templates)]]
        put = assembler.assemble(list(entry_blocks(own)), f"{folder}/metadata/{mark.decode()}.avro")
        Path(put.manifest.manifest_path).write_bytes(put.data)
        listed.append(put.manifest)
    writer.add_manifests(listed, manifests * entries)
    writer.save()


def make_long_history(folder: Path, snapshots: int, files_each: int, width: int) -> None:
    """Every snapshot adds a manifest of new files and drops the oldest of ``width``; the files are there, and empty."""
    writer = TableWriter(folder, _NUMBERS)
    (folder / "data").mkdir(parents=True)
    for number in range(snapshots):
        files = []
        for part in range(files_each):
            path = folder / "data" / f"part-{number:05d}-{part:03d}.parquet"
            path.write_bytes(b"")
            files.append(_plain_file(str(path)))
        writer.add_snapshot(files, keep_manifests=width - 1)
    writer.save()


def make_orphans(folder: Path, files: int) -> None:
    """Manifests hold every file but each hundredth; all of them exist, are empty, and old."""
    writer = TableWriter(folder, _NUMBERS)
    firsts = range(0, files, _FILES_A_MANIFEST)
    made = [_orphan_manifest(folder, files, first) for first in firsts]
    writer.add_manifests([manifest for manifest, _ in made], sum(count for _, count in made))
    for number in range(files):
        path = Path(_numbered(folder, number))
        if number < _ORPHAN_DAYS:
            path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (_OLD_S, _OLD_S))
    writer.save()


def _numbered(folder: Path, number: int) -> str:
    """As Spark names them, in a thousand partitions."""
    name = f"{number:08d}-0-6f4f1f7e-6a1c-4d8e-9e0b-000000000001-00001.parquet"
    return f"{folder}/data/day={number % _ORPHAN_DAYS:03d}/{name}"


def _orphan_manifest(folder: Path, files: int, first: int) -> tuple[ManifestFile, int]:
    last = min(files, first + _FILES_A_MANIFEST)
    wanted = [_plain_file(_numbered(folder, n)) for n in range(first, last) if n % _ORPHAN_EVERY]
    encoded = TableWriter(folder, _NUMBERS).encoded(wanted, f"{folder}/metadata/{first:08d}-m0.avro")
    Path(encoded.manifest.manifest_path).write_bytes(encoded.data)
    return encoded.manifest, len(wanted)


def _plain_file(path: str) -> DataFile:
    return DataFile(
        content=FileContent.DATA,
        file_path=path,
        file_format="PARQUET",
        partition=(),
        record_count=1,
        file_size_in_bytes=1,
    )
