"""The comparison by an engine's workers is that of one process, on both engines; failures keep their names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from icekeeper.deletion.referenced_paths import ReferencedPaths
from icekeeper.engines.engine import Engine
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.spark import SparkEngine
from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.metadata.table_reader import References
from icekeeper.operations.orphans import remove_orphans
from icekeeper.operations.orphans import remove_orphans as compare_listing
from icekeeper.operations.orphans.orphan_rules import OrphanCandidates, find_candidates
from icekeeper.operations.orphans.remove_orphans import Comparison, compare_by_engine, live_files
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import SourcePart, Storage
from support.maintained_table import MaintainedTable, grow_old, new_table
from support.moments import Moment, at

HOME, LIMIT_MS = "s3://b/t", 1000
NAMES = st.sampled_from(["a", "a b", "a%20b", "%41", "A", "b/c", "b//c", "x.metadata.json", "y.metadata.json"])
LISTED = st.builds(
    ListedObject, NAMES.map(lambda name: f"{HOME}/{name}"), st.just(1), st.one_of(st.none(), st.integers(900, 1100))
)
REFERENCES = st.builds(str.__add__, st.sampled_from(["s3://b/t/", "s3a://b/t/", "s3://other/t/", "hdfs://h/t/"]), NAMES)


@dataclass(frozen=True)
class Given:
    """A source of files at hand."""

    listed: Sequence[ListedObject]
    is_current: bool = True

    def objects(self) -> Iterator[ListedObject]:
        return iter(self.listed)

    def parts(self) -> Sequence[SourcePart]:
        return [partial(tuple, self.listed[number::3]) for number in range(3)]


def comparison(source: Given, references: Sequence[str]) -> Comparison:
    return Comparison(source, (HOME,), references, {}, References(), LIMIT_MS)


def by_engine(engine: Engine, listed: Sequence[ListedObject], references: Sequence[str]) -> OrphanCandidates:
    return compare_by_engine(comparison(Given(listed), references), engine, Storage({}))


def in_order_of_path(listed: Iterable[ListedObject]) -> list[ListedObject]:
    return sorted(listed, key=lambda found: (found.path, found.modified_ms or 0, found.size))


def in_order(candidates: OrphanCandidates) -> tuple[object, ...]:
    unreferenced = in_order_of_path(candidates.unreferenced)
    return (
        candidates.listed,
        candidates.too_young,
        unreferenced,
        in_order_of_path(candidates.metadata_files),
        sorted(candidates.prefix_mismatches),
    )


@given(st.lists(LISTED, max_size=30), st.lists(REFERENCES, max_size=10))
@settings(max_examples=40)
def test_workers_come_to_the_same(listed: list[ListedObject], references: list[str]) -> None:
    here = find_candidates(listed, ReferencedPaths(HOME, references), LIMIT_MS)
    assert in_order(by_engine(LocalEngine(1), listed, references)) == in_order(here)


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MaintainedTable:
    """Four appends, old; every comparison goes through the engine, in several parts and tasks."""
    made = new_table(local_catalog, tmp_path)
    made.fill(4)
    grow_old(Path(path) for path in made.files())
    monkeypatch.setattr(remove_orphans, "DISTRIBUTED_ABOVE", 0)
    monkeypatch.setattr(compare_listing, "_REFERENCES_PER_PART", 3)
    monkeypatch.setattr(compare_listing, "_MANIFESTS_PER_TASK", 2)
    monkeypatch.setattr(compare_listing, "_ITEM_PATHS", 2)
    return made


def orphans_by(engine: Engine, table: MaintainedTable) -> None:
    before = table.files()
    planted = {table.plant(f"data/part={number}/orphan.parquet") for number in range(5)}
    table.plant("data/young.parquet", days_old=0)
    outcome = table.run(Operation.REMOVE_ORPHANS, engine=engine, orphan_older_than_hours="72")
    assert set(map(normalise, outcome.files_deleted)) == planted
    assert outcome.metrics["remove_orphans.files_listed"] == len(before) + 6
    assert before < table.files()


def test_local_workers_find_the_orphans(table: MaintainedTable) -> None:
    orphans_by(LocalEngine(2), table)


def test_spark_finds_the_orphans(table: MaintainedTable, spark_session: SparkSession) -> None:
    orphans_by(SparkEngine(spark_session.sparkContext), table)


def test_what_is_committed_meanwhile_is_asked_for_afterwards(table: MaintainedTable) -> None:
    source = Path(normalise(table.data_files()[0].file_path))
    adopted = Path(table.plant("data/adopted.parquet", source.read_bytes()))
    with at(Moment.AFTER_EXCHANGE, lambda: table.table.add_files([adopted.as_uri()])):
        outcome = table.run(Operation.REMOVE_ORPHANS, orphan_older_than_hours="72")
    assert outcome.files_planned == ()
    assert adopted.exists()


def test_a_manifest_that_a_worker_cannot_read_is_a_refusal(table: MaintainedTable) -> None:
    oldest = next(iter(table.metadata.snapshots.values()))
    manifest = Path(normalise(table.reader.manifests(oldest)[0].manifest_path))
    manifest.unlink()
    orphan = table.plant("data/orphan.parquet")
    outcome = table.run(Operation.REMOVE_ORPHANS, orphan_older_than_hours="72")
    assert outcome.status is Status.REFUSED
    assert str(manifest) in (outcome.reason or "")
    assert orphan in table.files()


def fail() -> Iterable[ListedObject]:
    raise StorageError("the folder cannot be listed")


class Torn(Given):
    def parts(self) -> Sequence[SourcePart]:
        return [*super().parts(), fail]


def test_a_listing_that_fails_in_a_worker_fails() -> None:
    with pytest.raises(StorageError, match="cannot be listed") as caught:
        compare_by_engine(comparison(Torn([]), []), LocalEngine(1), Storage({}))
    assert not isinstance(caught.value, MetadataUnreadable)


def test_the_number_of_references_is_known_from_the_manifest_lists(table: MaintainedTable) -> None:
    reader = table.reader
    manifests = References().listed(reader, reader.metadata.snapshots.values())
    assert live_files(manifests.values()) == len(table.data_files())
