"""Workers make the same compaction plan as a single process."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_write import encode_manifest, encode_manifest_list
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import DataFile, EntryStatus, ManifestContent, ManifestEntry, ManifestFile, Nothing
from icekeeper.operations.compaction.land import group_entries
from icekeeper.operations.compaction.land.group_entries import GroupEntries
from icekeeper.operations.compaction.plan import plan_on_workers as workers
from icekeeper.operations.compaction.plan.bins import FileGroup
from icekeeper.operations.compaction.plan.candidates import TableState
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan, plan_compaction
from icekeeper.operations.compaction.plan.plan_on_workers import may_be_planned_on_workers, plan_on_workers
from icekeeper.policy import Policy
from icekeeper.storage.storage import Storage
from support.examples import examples
from support.plans import HEAD, HEAD_MS, HEAD_SEQUENCE, MB, data_file, manifest, policy, table

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "p", "required": False, "type": "long"},
        {"id": 2, "name": "x", "required": False, "type": "double"},
    ],
}
SPECS: Any = [
    {"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "name": "p", "transform": "identity"}]},
    {"spec-id": 1, "fields": [{"source-id": 1, "field-id": 1001, "name": "b", "transform": "bucket[2]"}]},
]
MORE: dict[str, Any] = {"partition-specs": SPECS, "default-spec-id": 1}
TABLE = table(schemas=[SCHEMA], **MORE)
ZERO = {2: struct.pack("<d", 0.0)}

one_file = st.fixed_dictionaries(
    {
        "spec_id": st.sampled_from([0, 0, 1]),
        "partition": st.integers(0, 1),
        "size": st.one_of(st.integers(1, MB), st.integers(1, 30 * MB)),
        "records": st.sampled_from([0, 10, 1000]),
        "row_groups": st.sampled_from([0, 1, 3, 12]),
        "is_zero": st.booleans(),
        "file_format": st.sampled_from(["PARQUET"] * 5 + ["ORC", "CSV"]),
        "snapshot_id": st.sampled_from([HEAD, 7]),
        "later": st.sampled_from([0, 0, 3]),
    }
)
policies = st.builds(
    policy,
    target_file_size_mb=st.sampled_from([1, 2, 10]),
    min_input_files=st.integers(2, 5),
    max_files_to_rewrite=st.sampled_from([None, 10]),
    expected_scans=st.sampled_from([None, 1, 100]),
)


def written(folder: Path, drawn: Sequence[dict[str, Any]], per_manifest: int) -> list[ManifestFile]:
    """Manifests with these files; each manifest has a single partition spec."""
    found = []
    for spec_id in (0, 1):
        entries = [entry_of(n, values) for n, values in enumerate(drawn) if values["spec_id"] == spec_id]
        for start in range(0, len(entries), per_manifest):
            path = f"{folder}/m{spec_id}-{start}.avro"
            encoded = encode_manifest(
                TABLE,
                spec_id=spec_id,
                content=ManifestContent.DATA,
                entries=entries[start : start + per_manifest],
                path=path,
                snapshot_id=HEAD,
                sequence_number=HEAD_SEQUENCE,
            )
            Path(path).write_bytes(encoded.data)
            found.append(encoded.manifest)
    return found


def entry_of(number: int, raw: dict[str, Any]) -> ManifestEntry:
    offsets = tuple(4 + raw["size"] * n // raw["row_groups"] for n in range(raw["row_groups"]))
    bounds = ZERO if raw["is_zero"] else None
    file: DataFile = data_file(
        f"s3://b/t/data/{raw.get('name', number)}",
        raw["size"],
        [raw["partition"]],
        records=raw["records"],
        file_format=raw["file_format"],
        split_offsets=offsets or None,
        lower_bounds=bounds,
        upper_bounds=bounds,
    )
    return ManifestEntry(EntryStatus.EXISTING, raw["snapshot_id"], 1 + number % 9, 1 + number % 9 + raw["later"], file)


def both(manifests: list[ManifestFile], settings_of: Policy, *, cuts: bool = False) -> list[CompactionPlan | Nothing]:
    """The plan of this process and the plan of workers."""
    reader = TableReader(TABLE, Storage({}).read)
    state = TableState(TABLE, TABLE.snapshots[HEAD], manifests, reader.live_entries(manifests))
    here = plan_compaction(state, settings_of, now_ms=HEAD_MS, cuts=cuts)
    there = plan_on_workers(
        LocalEngine(1), replace(state, live_files=()), settings_of, now_ms=HEAD_MS, cuts=cuts, io_properties={}
    )
    return [here, there]


def facts(group: FileGroup) -> tuple[object, ...]:
    """A group without its number and without float columns, which only workers judge."""
    plain = (replace(c, condition=replace(c.condition, misread_columns=None)) for c in group.files)
    place = group.reason, group.output_count, group.output_bytes, group.worth, group.route_to
    return tuple(plain), *place, group.total_bytes, group.record_count, group.has_lineage, group.key


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(one_file, min_size=1, max_size=60), policies, st.integers(1, 30), st.booleans())
def test_workers_make_the_same_plan(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[dict[str, Any]],
    settings_of: Policy,
    per_manifest: int,
    cuts: bool,
) -> None:
    """With caps, groups of equal worth may be chosen in another order, so only the counts are compared."""
    manifests = written(tmp_path_factory.mktemp("t"), drawn, per_manifest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "_PART_ENTRIES", 7)
        patch.setattr(workers, "_PORTION_BYTES", 1)
        here, there = both(manifests, settings_of, cuts=cuts)
    assert (type(here), getattr(here, "reason", "")) == (type(there), getattr(there, "reason", ""))
    if isinstance(here, CompactionPlan) and isinstance(there, CompactionPlan):
        assert here.files_considered == there.files_considered
        assert here.files_unsupported == there.files_unsupported
        if settings_of.max_files_to_rewrite is None:
            assert here.left == there.left or here.files_unsupported > 1  # the sentence names the first file
            assert {facts(group) for group in here.groups} == {facts(group) for group in there.groups}
        assert [group.group_id for group in there.groups] == list(range(len(there.groups)))


def small(count: int, **more: Any) -> list[dict[str, Any]]:
    values = {
        "spec_id": 1,
        "partition": 0,
        "size": MB,
        "records": 10,
        "row_groups": 1,
        "is_zero": False,
        "file_format": "PARQUET",
        "snapshot_id": HEAD,
        "later": 0,
    }
    return [values | more for _ in range(count)]


def test_workers_judge_float_columns(tmp_path: Path) -> None:
    manifests = written(tmp_path, [*small(3), *small(3, is_zero=True)], 2)
    _, there = both(manifests, policy(min_input_files=2))
    assert isinstance(there, CompactionPlan)
    judged = {c.file_path: c.condition.misread_columns for group in there.groups for c in group.files}
    assert judged == {f"s3://b/t/data/{n}": frozenset({2} if n >= 3 else ()) for n in range(6)}


def test_a_group_with_a_file_listed_twice_is_left_alone(tmp_path: Path) -> None:
    """Two manifests list it, and two tasks read them; the other partition is rewritten."""
    twin = small(2, name="twin", partition=1)
    manifests = written(tmp_path, [twin[0], *small(5, partition=1), *small(5), twin[1]], 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "_PORTION_BYTES", 1)
        _, there = both(manifests, policy(min_input_files=2))
    assert isinstance(there, CompactionPlan)
    assert [group.partition for group in there.groups] == [(0,)]


def test_a_partition_larger_than_a_worker_holds_is_planned_in_portions(tmp_path: Path) -> None:
    """Each file is in at most one group, and groups reach the target size."""
    manifests = written(tmp_path, small(60), 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "_HELD_CANDIDATES", 20)
        patch.setattr(workers, "_PORTION_BYTES", 1)
        _, there = both(manifests, policy(min_input_files=2, target_file_size_mb=10))
    assert isinstance(there, CompactionPlan)
    paths = [path for group in there.groups for path in group.paths]
    assert len(paths) == len(set(paths))
    assert [group.total_bytes for group in there.groups] == [9 * MB] * 6 + [6 * MB]


def test_an_unreadable_manifest_fails_the_plan(tmp_path: Path) -> None:
    manifests = written(tmp_path, small(6), 2)
    Path(manifests[1].manifest_path).unlink()
    reader = TableReader(TABLE, Storage({}).read)
    state = TableState(TABLE, TABLE.snapshots[HEAD], manifests, reader.live_entries([]))
    with pytest.raises(MetadataUnreadable, match=manifests[1].manifest_path):
        plan_on_workers(LocalEngine(1), state, policy(), now_ms=HEAD_MS, cuts=False, io_properties={})


@pytest.mark.parametrize(
    ("manifests", "more", "expected"),
    [
        ([manifest(live=250_000), manifest(live=250_000)], {}, True),
        ([manifest(live=250_000), manifest(live=249_999)], {}, False),
        ([manifest(live=600_000), manifest(live=1, content=ManifestContent.DELETES)], {}, False),
        ([manifest(live=600_000), manifest(live=0, content=ManifestContent.DELETES)], {}, True),
        ([manifest(live=600_000)], {"rewrite_reason": "codec"}, False),
        ([manifest(live=None)], {}, False),
    ],
)
def test_workers_plan_large_tables_without_deletes(
    manifests: list[ManifestFile], more: dict[str, Any], expected: bool
) -> None:
    assert may_be_planned_on_workers(manifests, policy(**more)) is expected


# Plans hold no column metrics, so a group's entries are read again when the group is rewritten.


def test_entries_are_read_again_a_few_groups_ahead(tmp_path: Path) -> None:
    """A manifest is read once, also for several groups."""
    manifests = written(tmp_path, [*small(4, is_zero=True), *small(4, partition=1)], 2)
    plan, _ = both(manifests, policy(min_input_files=2))
    assert isinstance(plan, CompactionPlan)
    entries, read = entries_of(plan, manifests)
    for group in plan.groups:
        found = entries.of([group])
        bounds = {path: found[path].lower_bounds for path in group.paths}
        assert bounds == dict.fromkeys(group.paths, ZERO if group.partition == (0,) else None)
    assert sorted(read) == sorted(m.manifest_path for m in manifests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_entries, "_HELD_BYTES", 1)
        entries, read = entries_of(plan, manifests)
    for group in plan.groups:
        assert group.paths <= entries.of([group]).keys() <= {path for g in plan.groups for path in g.paths}
    assert sorted(read) == sorted(m.manifest_path for m in manifests)  # each group's files are in two manifests


@pytest.mark.parametrize("changed", [{"snapshot_id": 8}, {"size": MB + 1}, {"later": 1}, {"name": "other"}])
def test_an_entry_that_changed_since_planning_is_not_found(changed: dict[str, Any], tmp_path: Path) -> None:
    """The manifest was overwritten, which violates the specification."""
    drawn = small(4)
    manifests = written(tmp_path, drawn, 4)
    plan, _ = both(manifests, policy(min_input_files=2))
    assert isinstance(plan, CompactionPlan)
    (group,) = plan.groups
    drawn[2] |= changed
    entries, _ = entries_of(plan, written(tmp_path, drawn, 4))
    assert group.paths - entries.of([group]).keys() == {"s3://b/t/data/2"}


def entries_of(plan: CompactionPlan, manifests: list[ManifestFile]) -> tuple[GroupEntries, list[str]]:
    """The plan's entries, and the paths of the manifests read for them."""
    read: list[str] = []

    def noted(path: str) -> bytes:
        if path.endswith("list.avro"):
            return encode_manifest_list(
                2, manifests, snapshot_id=HEAD, parent_snapshot_id=None, sequence_number=HEAD_SEQUENCE
            )
        read.append(path)
        return Path(path).read_bytes()

    document = {**TABLE.document, "snapshots": [{**TABLE.document["snapshots"][0], "manifest-list": "list.avro"}]}
    return GroupEntries(TableReader(TableMetadata(document), noted), plan), read
