"""The verbs of a history's writers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from icekeeper.metadata.puffin import encode_puffin
from icekeeper.metadata.updates import apply_updates
from icekeeper.model import EntryStatus, FileContent
from support.model.reader import CHANGED, DATA, ID, ROW_ID, Row, local
from support.model.world import World
from support.model.writers import KEY, MAIN, PART, VALUE, WRITER, Slow, Writers, with_new, without


class Verb(StrEnum):
    """All events of a table; a configuration draws from some of them."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    OVERWRITE_ALL = "overwrite all"
    POSITIONS = "positions"
    KEYS = "keys"
    UPSERT = "upsert"
    EVOLVE = "evolve"
    REPARTITION = "repartition"
    SORT = "sort"
    BRANCH = "branch"
    TAG = "tag"
    DROP_REF = "drop ref"
    FAST_FORWARD = "fast forward"
    ROLL_BACK = "roll back"
    SET_CURRENT = "set current"
    REPLACE = "replace"
    RECREATE = "recreate"
    RENAME = "rename"
    UPGRADE = "upgrade"
    STAGE = "stage"
    PUBLISH = "publish"
    ADD_AGAIN = "add again"
    STATISTICS = "statistics"
    PARTITION_STATISTICS = "partition statistics"
    STRAY = "stray"
    PIN = "pin"
    STAGE_LOAD = "stage load"
    EXPIRE = "expire"
    SWEEP = "sweep"
    REWRITE = "rewrite"
    CRASH = "crash"
    PREPARE = "prepare"
    LAND = "land"
    MAINTAIN = "maintain"
    DELIVER = "deliver"
    TIME = "time"


@dataclass(frozen=True)
class Step:
    """A step of a history; ``seed`` determines its details."""

    verb: Verb
    seed: int

    def __repr__(self) -> str:
        return f"Step(Verb.{self.verb.name}, {self.seed})"


def append(writers: Writers) -> None:
    branch, spec = writers.some_branch(), writers.some_spec()
    rows = writers.new_rows(writers.chance.randint(1, 5))
    files = writers.write(rows, spec)
    writers.commit(branch, "append", with_new(writers.model(writers.head(branch)), rows), added=files)


def overwrite(writers: Writers) -> None:
    """Drop some files, with deletes that apply to no other file, and add rows in their place."""
    branch = writers.some_branch()
    head = writers.head(branch)
    if head is None:
        return
    files = [f for f in writers.reader.files(writers.manifest_list(head)) if f.content == DATA]
    gone = writers.chance.sample(files, min(len(files), writers.chance.randint(1, 2)))
    rows = writers.new_rows(writers.chance.randint(0, 2))
    kept = without(writers.model(head), (row for row in writers.live(head) if row.file in gone))
    paths = {file.path for file in gone}
    vectors = {f.key for f in writers.reader.files(writers.manifest_list(head)) if f.referenced in paths}
    writers.commit(
        branch,
        "overwrite" if rows else "delete",
        with_new(kept, rows),
        added=writers.write(rows, writers.some_spec()),
        removed={file.key for file in gone} | vectors,
    )


def overwrite_all(writers: Writers) -> None:
    """Remove all files and add another file, as PyIceberg commits an overwrite."""
    if gone := {file.key for file in writers.files()}:
        writers.commit(MAIN, "delete", {}, removed=gone)
    rows = writers.new_rows(1)
    writers.commit(MAIN, "append", with_new({}, rows), added=writers.write(rows, writers.table.default_spec_id))


def delete_positions(writers: Writers) -> None:
    branch = writers.some_branch()
    head = writers.head(branch)
    rows = writers.live(head)
    if head is None or not rows:
        return
    gone = writers.chance.sample(rows, min(len(rows), writers.chance.randint(1, 3)))
    added, absorbed = writers.position_files(gone, head)
    writers.commit(branch, "delete", without(writers.model(head), gone), added=added, removed=absorbed)


def _keys(writers: Writers, rows: list[Row]) -> tuple[int, tuple[Any, ...], tuple[int, ...], list[dict[int, Any]]]:
    """Spec, partition, key columns and keys of an equality delete of some rows."""
    chance, spec_id = writers.chance, writers.some_spec()
    ids = chance.choice([(KEY,), (KEY, PART), (ID,), (PART, KEY)])
    of_some = chance.choice(rows).values if rows else writers.new_rows(1)[0]
    partition = writers.partition_of(spec_id, of_some)
    chosen = [chance.choice(rows).values if rows else of_some for _ in range(chance.randint(1, 2))]
    return spec_id, partition, ids, [{i: row.get(i) for i in ids} for row in [of_some, *chosen]]


def _reached(
    writers: Writers, rows: list[Row], spec_id: int, partition: tuple[Any, ...], ids: tuple[int, ...], keys: Any
) -> list[Row]:
    wanted = {tuple(key[i] for i in ids) for key in keys}
    return [
        row
        for row in rows
        if tuple(row.values.get(i) for i in ids) in wanted
        and (not partition or (spec_id, partition) == (row.file.spec_id, row.file.partition))
    ]


def delete_keys(writers: Writers) -> None:
    """Commit an equality delete: in a partition, or global under a spec without fields."""
    branch = writers.some_branch()
    head = writers.head(branch)
    if head is None:
        return
    rows = writers.live(head)
    spec_id, partition, ids, keys = _keys(writers, rows)
    gone = _reached(writers, rows, spec_id, partition, ids, keys)
    delete = writers.key_file(spec_id, partition, ids, keys)
    writers.commit(branch, "delete", without(writers.model(head), gone), added=[delete])


def upsert(writers: Writers) -> None:
    """Commit new rows and deletes of the keys that they replace, as Flink does."""
    branch = writers.some_branch()
    head = writers.head(branch)
    rows = writers.live(head)
    spec_id, partition, ids, keys = _keys(writers, rows)
    new = [{**row, **key} for key, row in zip(keys, writers.new_rows(len(keys)), strict=True)]
    for row in new:
        writers.ids += 1
        row[ID] = writers.ids
    gone = _reached(writers, rows, spec_id, partition, ids, keys)
    added = [*writers.write(new, writers.some_spec()), writers.key_file(spec_id, partition, ids, keys)]
    writers.commit(branch, "overwrite", with_new(without(writers.model(head), gone), new), added=added)


# The table's design.


def evolve(writers: Writers) -> None:
    chance, columns = writers.chance, [dict(column) for column in writers.columns]
    names = {column["name"] for column in columns}
    free = [f"c{n}" for n in range(9) if f"c{n}" not in names]
    by_id = {column["id"]: column for column in columns}
    last = int(writers.table.document["last-column-id"])
    kind = chance.choice(["add", "add", "default", "rename", "widen", "drop", "first"])
    if kind in ("add", "default"):
        last += 1
        new: dict[str, Any] = {"id": last, "name": chance.choice(free), "type": "int", "required": False}
        if kind == "default" and writers.version > 2:
            new |= {"initial-default": 5, "write-default": 5}
        columns.append(new)
    elif kind == "rename":
        chance.choice([column for column in columns if column["id"] != ID])["name"] = chance.choice(free)
    elif kind == "widen":
        by_id[KEY]["type"] = "long"
    elif kind == "drop":
        droppable = [column for column in columns if column["id"] >= VALUE]
        if not droppable:
            return
        columns.remove(chance.choice(droppable))
    else:
        columns.insert(0, columns.pop())
    schemas = list(writers.table.document["schemas"])
    schema_id = max(int(schema["schema-id"]) for schema in schemas) + 1
    schemas.append({"type": "struct", "schema-id": schema_id, "fields": columns})
    writers.trace.append(f"{WRITER}: {kind} a column")
    change = {"schemas": schemas, "current-schema-id": schema_id, "last-column-id": last}
    writers.world.change(WRITER, **change)


_TRANSFORMS = {
    1000: {"source-id": PART, "field-id": 1000, "name": "by_part", "transform": "identity"},
    1001: {"source-id": KEY, "field-id": 1001, "name": "by_key", "transform": "identity"},
    1002: {"source-id": PART, "field-id": 1002, "name": "by_letter", "transform": "truncate[1]"},
}


def repartition(writers: Writers) -> None:
    wanted = writers.chance.choice([(), (1000,), (1000,), (1001,), (1002,), (1000, 1001)])
    if writers.version == 1:  # v1 specs keep their fields and number them without gaps
        wanted = wanted[:1] if wanted[:1] == (1000,) else ()
    repartition_by(writers, wanted)


def repartition_by(writers: Writers, wanted: Sequence[int]) -> None:
    """Let the current spec have the partition fields with the ids ``wanted``."""
    table = writers.table
    specs = list(table.document["partition-specs"])
    fields = [_TRANSFORMS[i] for i in wanted]
    if writers.version == 1 and not wanted and any(spec["fields"] for spec in specs):
        fields = [{**_TRANSFORMS[1000], "transform": "void"}]
    found = next((spec["spec-id"] for spec in specs if spec["fields"] == fields), None)
    if found is None:
        # The id is new, because old files may name a spec that a pass has removed.
        writers.names += 1
        found = writers.names
        specs.append({"spec-id": found, "fields": fields})
    last = max([int(table.document["last-partition-id"]), *wanted])
    writers.trace.append(f"{WRITER}: spec {found} is by {wanted}")
    change = {"partition-specs": specs, "default-spec-id": found, "last-partition-id": last}
    writers.world.change(WRITER, **change)


def sort(writers: Writers) -> None:
    orders = list(writers.table.document["sort-orders"])
    order_id = max(int(order["order-id"]) for order in orders) + 1
    column = writers.chance.choice([ID, KEY, PART])
    field = {"source-id": column, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
    orders.append({"order-id": order_id, "fields": [field]})
    writers.trace.append(f"{WRITER}: sorted by {column}")
    change = {"sort-orders": orders, "default-sort-order-id": order_id}
    writers.world.change(WRITER, **change)


def upgrade(writers: Writers) -> None:
    version, change = writers.version + 1, dict[str, Any]()
    if version > 3:
        return
    if version == 2:
        head = writers.head()
        refs = {} if head is None else {MAIN: {"type": "branch", "snapshot-id": head}}
        change = {"last-sequence-number": 0, "refs": {**refs, **(writers.table.document.get("refs") or {})}}
    else:
        change = {"next-row-id": 0}
    writers.trace.append(f"{WRITER}: upgraded to v{version}")
    writers.world.change(WRITER, **{"format-version": version}, **change)


# Refs and the table as a whole.


def set_ref(writers: Writers, name: str, snapshot_id: int, kind: str, **retention: int) -> None:
    """Create or move a branch or tag."""
    ref = {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": snapshot_id}
    ref |= {key.replace("_", "-"): value for key, value in retention.items()}
    world = writers.world
    writers.trace.append(f"{WRITER}: {kind} {name} at {snapshot_id}")
    after = apply_updates(world.table, [ref], metadata_location=world.location, now_ms=world.now_ms())
    world.publish(after, WRITER)


def some_snapshot(writers: Writers, *, any_one: bool) -> int | None:
    """A head, or with ``any_one`` any snapshot, drawn in order of commits, because the ids of a pass are random."""
    heads = {ref.snapshot_id for ref in writers.table.refs.values()}
    found = [i for i in writers.table.snapshots if any_one or i in heads]
    return writers.chance.choice(found) if found else None


def make_ref(writers: Writers, kind: str, *, any_one: bool, **retention: int) -> str | None:
    """Make a branch or tag at a head, or with ``any_one`` at any snapshot; return its name."""
    snapshot_id = some_snapshot(writers, any_one=any_one)
    if snapshot_id is None:
        return None
    writers.names += 1
    name = f"{kind[0]}{writers.names}"
    set_ref(writers, name, snapshot_id, kind, **retention)
    return name


def drop_ref(writers: Writers) -> None:
    names = sorted(set(writers.table.refs) - {MAIN})
    if names:
        name = writers.chance.choice(names)
        refs = {n: ref for n, ref in writers.table.document["refs"].items() if n != name}
        writers.trace.append(f"{WRITER}: {name} dropped")
        writers.world.change(WRITER, refs=refs)


def fast_forward(writers: Writers) -> None:
    head = writers.head()
    for name in writers.branches():
        ahead = writers.head(name)
        if head is not None and ahead not in (None, head) and writers.since(name, head) is not None:
            set_ref(writers, MAIN, ahead, "branch")
            return


def _ancestors(writers: Writers) -> list[int]:
    table, now, found = writers.table, writers.head(), list[int]()
    while now is not None and now in table.snapshots:
        found.append(now)
        now = table.snapshots[now].parent_id
    return found


def roll_back(writers: Writers) -> None:
    """Roll back to an ancestor of the head."""
    ancestors = _ancestors(writers)
    if len(ancestors) > 1:
        set_ref(writers, MAIN, writers.chance.choice(ancestors[1:]), "branch")


def set_current(writers: Writers) -> None:
    """Set any snapshot as current."""
    snapshot_id = some_snapshot(writers, any_one=True)
    if snapshot_id is not None:
        set_ref(writers, MAIN, snapshot_id, "branch")


def replace_table(writers: Writers) -> None:
    """``CREATE OR REPLACE TABLE AS SELECT``: the history is kept, the head has no parent."""
    rows = writers.new_rows(writers.chance.randint(1, 4))
    files = writers.write(rows, writers.table.default_spec_id)
    writers.commit(MAIN, "append", with_new({}, rows), added=files, replaces_table=True)


def recreate(writers: Writers) -> None:
    """Drop the table and create a new table with the same name at another location."""
    writers.trace.append(f"{WRITER}: dropped and created anew")
    writers.create(writers.version)


def rename(writers: Writers) -> None:
    world: World = writers.world
    writers.names += 1
    world.name = replace(world.name, name=f"t{writers.names}")
    writers.trace.append(f"{WRITER}: renamed to {world.name}")


# Snapshots and files beside the branches.


def stage(writers: Writers) -> None:
    """Stage a snapshot that no branch has, as for write-audit-publish."""
    rows = writers.new_rows(writers.chance.randint(1, 3))
    files = writers.write(rows, writers.table.default_spec_id)
    writers.commit(MAIN, "append", with_new(writers.model(writers.head()), rows), added=files, is_staged=True)


def publish(writers: Writers) -> None:
    """Cherry-pick a staged snapshot, or a snapshot of another branch, as Iceberg-Java does: fast-forward the branch if
    possible, or add the files again, in new manifests."""
    picked, ancestors = some_snapshot(writers, any_one=True), _ancestors(writers)
    if picked is None or picked in ancestors:
        return
    table, source = writers.table, "source-snapshot-id"
    if table.snapshots[picked].parent_id == writers.head():
        set_ref(writers, MAIN, picked, "branch")
        return
    is_published = any(table.snapshots[i].summary.get(source) == str(picked) for i in ancestors)
    if table.snapshots[picked].operation == "append" and not is_published:
        files = [
            (manifest.partition_spec_id, replace(entry.file, first_row_id=None))
            for manifest, entry in writers.entries(picked)
            if entry.snapshot_id == picked and entry.status is EntryStatus.ADDED
        ]
        paths = {file.file_path for _, file in files}
        rows = [row.values for row in writers.live(picked) if row.file.path in paths]
        after = with_new(writers.model(writers.head()), rows)
        writers.commit(MAIN, "append", after, added=files, summary={source: str(picked)})


def add_again(writers: Writers) -> None:
    """Add a live file again, in a separate manifest, so that readers read its rows twice; not if the table has
    vectors, because those are older than the new entry."""
    head = writers.head()
    live = [] if head is None else [(m.partition_spec_id, e.file) for m, e in writers.entries(head) if e.is_live]
    if live and all(file.content is FileContent.DATA for _, file in live):
        spec_id, file = writers.chance.choice(live)
        again = [(spec_id, replace(file, first_row_id=None))]
        writers.commit(MAIN, "append", writers.model(head), added=again)


def add_statistics(writers: Writers, *, of_partitions: bool = False) -> None:
    """Add a statistics file for a snapshot; no pass reads its content."""
    snapshot_id = some_snapshot(writers, any_one=True)
    if snapshot_id is None:
        return
    writers.names += 1
    kind = "partition-statistics" if of_partitions else "statistics"
    path = f"{writers.table.metadata_directory}/{snapshot_id}-{writers.names}.{'parquet' if of_partitions else 'stats'}"
    data, _ = encode_puffin([], {})
    Path(local(path)).write_bytes(data)
    statistics = {"snapshot-id": snapshot_id, "statistics-path": path, "file-size-in-bytes": len(data)}
    if not of_partitions:
        statistics |= {"file-footer-size-in-bytes": len(data) - 4, "blob-metadata": []}
    others = [had for had in writers.table.document.get(kind) or () if had["snapshot-id"] != snapshot_id]
    writers.trace.append(f"{WRITER}: {kind} of {snapshot_id}")
    writers.world.change(WRITER, **{kind: [*others, statistics]})


def leave_stray(writers: Writers) -> None:
    """Leave the files of a writer that died: data, a manifest, a metadata file that was never swapped in."""
    writers.write(writers.new_rows(2), writers.table.default_spec_id)
    writers.names += 1
    folder, name = Path(local(writers.table.metadata_directory)), f"stray{writers.names}"
    (folder / f"{name}-m0.avro").write_bytes(b"Obj")
    if writers.chance.random() < 0.3:
        (folder / f"99999-{name}.metadata.json").write_bytes(Path(local(writers.world.location)).read_bytes())


# Writers that read the table now and commit later.


def prepare(writers: Writers) -> Slow | None:
    """Read the head and write files; commit later, if Iceberg-Java's validation still succeeds."""
    branch = writers.some_branch()
    head = writers.head(branch)
    if head is None:
        return None
    made = writers.chance.choice([_slow_append, _slow_positions, _slow_rewrite, _slow_rewrite, _slow_update])
    writers.trace.append(f"{WRITER}: prepares {made.__name__} on {branch} at {head}")
    return made(writers, branch, head)


def _slow_append(writers: Writers, branch: str, start: int) -> Slow | None:
    rows, spec = writers.new_rows(2), writers.table.default_spec_id
    files = writers.write(rows, spec)

    def land() -> bool:
        if spec not in writers.table.specs:
            return False
        writers.commit(branch, "append", with_new(writers.model(writers.head(branch)), rows), added=files)
        return True

    return land


def _slow_positions(writers: Writers, branch: str, start: int) -> Slow | None:
    rows = writers.live(start)
    gone = writers.chance.sample(rows, min(len(rows), 2))
    files = {row.file for row in gone}
    was = writers.version

    def land() -> bool:
        head = writers.head(branch)
        valid = head is not None and writers.since(branch, start) is not None and writers.still_live(branch, files)
        if not gone or head is None or not valid or writers.version != was:
            return False
        if writers.version > 2 and writers.new_deletes(branch, start, files, equality=False):
            return False
        added, absorbed = writers.position_files(gone, head)
        writers.commit(branch, "delete", without(writers.model(head), gone), added=added, removed=absorbed)
        return True

    return land


def _slow_rewrite(writers: Writers, branch: str, start: int) -> Slow | None:
    """Iceberg-Java's ``rewrite_data_files``: outputs keep the planning sequence number, and only new position deletes
    and vectors of the inputs prevent the commit."""
    live = writers.live(start)
    files = {row.file for row in live}
    some = writers.chance.sample(sorted(files, key=str), min(len(files), 3))
    rows = [row for row in live if row.file in some]
    if not rows:
        return None
    spec = writers.table.default_spec_id
    values = [
        {**writers.defaults, **row.values} | ({} if row.row_id is None else {ROW_ID: row.row_id, CHANGED: row.changed})
        for row in rows
    ]
    if len({row.row_id is None for row in rows}) > 1:
        return None
    written, columns = writers.write(values, spec), writers.table.current_schema_id
    number, was = writers.table.snapshots[start].sequence_number, writers.version

    def land() -> bool:
        head = writers.head(branch)
        if head is None or (was, columns) != (writers.version, writers.table.current_schema_id):
            return False
        if spec not in writers.table.specs or not writers.still_live(branch, some):
            return False
        if writers.new_deletes(branch, start, some, equality=False):
            return False
        if any(file.spec_id != spec for file in some) and writers.new_keys(branch, start):
            return False  # Java ignores that after the move a delete no longer applies to rows, or another delete does
        paths = {file.path for file in some}
        vectors = {f.key for f in writers.reader.files(writers.manifest_list(head)) if f.referenced in paths}
        removed = {file.key for file in some} | vectors
        rows = writers.model(head)
        writers.commit(branch, "replace", rows, added=written, removed=removed, sequence_number=number)
        return True

    return land


def _slow_update(writers: Writers, branch: str, start: int) -> Slow | None:
    """Copy on write: rewrite a file without one of its rows; any new delete of the file prevents the commit."""
    live = writers.live(start)
    if not live:
        return None
    file = writers.chance.choice(live).file
    rows = [row for row in live if row.file == file]
    kept = [dict(row.values) for row in rows[1:] if row.row_id is None]
    if len(kept) != len(rows) - 1:
        kept = []
    spec, columns = writers.table.default_spec_id, writers.table.current_schema_id
    new = [{**writers.defaults, **row} for row in kept]
    for row in new:
        writers.ids += 1
        row[ID] = writers.ids
    written = writers.write(new, spec)

    def land() -> bool:
        head = writers.head(branch)
        if head is None or columns != writers.table.current_schema_id or spec not in writers.table.specs:
            return False
        if not writers.still_live(branch, [file]) or writers.new_deletes(branch, start, [file], equality=True):
            return False
        vectors = {f.key for f in writers.reader.files(writers.manifest_list(head)) if f.referenced == file.path}
        after = with_new(without(writers.model(head), (row for row in writers.live(head) if row.file == file)), new)
        writers.commit(branch, "overwrite", after, added=written, removed={file.key} | vectors)
        return True

    return land


WRITES: Mapping[Verb, Callable[[Writers], None]] = {
    Verb.APPEND: append,
    Verb.OVERWRITE: overwrite,
    Verb.OVERWRITE_ALL: overwrite_all,
    Verb.POSITIONS: delete_positions,
    Verb.KEYS: delete_keys,
    Verb.UPSERT: upsert,
    Verb.EVOLVE: evolve,
    Verb.REPARTITION: repartition,
    Verb.SORT: sort,
    Verb.DROP_REF: drop_ref,
    Verb.FAST_FORWARD: fast_forward,
    Verb.ROLL_BACK: roll_back,
    Verb.SET_CURRENT: set_current,
    Verb.REPLACE: replace_table,
    Verb.RECREATE: recreate,
    Verb.UPGRADE: upgrade,
    Verb.STAGE: stage,
    Verb.PUBLISH: publish,
    Verb.ADD_AGAIN: add_again,
    Verb.STATISTICS: add_statistics,
    Verb.PARTITION_STATISTICS: partial(add_statistics, of_partitions=True),
    Verb.STRAY: leave_stray,
}
