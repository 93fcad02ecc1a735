"""What the writers of a history do, one verb at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from icekeeper.metadata.updates import apply_updates
from support.model.reader import CHANGED, DATA, ID, ROW_ID, Row
from support.model.world import World
from support.model.writers import KEY, MAIN, PART, VALUE, WRITER, Slow, Writers, with_new, without


class Verb(StrEnum):
    APPEND = "append"
    OVERWRITE = "overwrite"
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
    REPLACE = "replace"
    RECREATE = "recreate"
    RENAME = "rename"
    UPGRADE = "upgrade"
    PREPARE = "prepare"
    LAND = "land"
    MAINTAIN = "maintain"
    DELIVER = "deliver"
    TIME = "time"


def append(writers: Writers) -> None:
    branch, spec = writers.some_branch(), writers.some_spec()
    rows = writers.new_rows(writers.chance.randint(1, 5))
    files = writers.write(rows, spec)
    writers.commit(branch, "append", with_new(writers.model(writers.head(branch)), rows), added=files)


def overwrite(writers: Writers) -> None:
    """Drop some files whole, with the deletes of nothing else, and add rows in their place."""
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
    """By equality: in one partition, or everywhere under a spec without fields."""
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
    """New rows and, in the same commit, deletes of the keys that they replace, as Flink writes them."""
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
    table = writers.table
    wanted = writers.chance.choice([(), (1000,), (1000,), (1001,), (1002,), (1000, 1001)])
    fields = [_TRANSFORMS[i] for i in wanted]
    specs = list(table.document["partition-specs"])
    found = next((spec["spec-id"] for spec in specs if spec["fields"] == fields), None)
    if found is None:
        # An id that was never used: a spec that a pass removed may be named by files of the past.
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
    if writers.version < 3:
        writers.trace.append(f"{WRITER}: upgraded to v3")
        change = {"format-version": 3, "next-row-id": 0}
        writers.world.change(WRITER, **change)


# Refs and the table as a whole.


def _set_ref(writers: Writers, name: str, snapshot_id: int, kind: str) -> None:
    ref = {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": snapshot_id}
    world = writers.world
    writers.trace.append(f"{WRITER}: {kind} {name} at {snapshot_id}")
    after = apply_updates(world.table, [ref], metadata_location=world.location, now_ms=world.now_ms())
    world.publish(after, WRITER)


def _some_snapshot(writers: Writers, *, any_one: bool) -> int | None:
    heads = sorted({ref.snapshot_id for ref in writers.table.refs.values()})
    found = sorted(writers.table.snapshots) if any_one else heads
    return writers.chance.choice(found) if found else None


def make_ref(writers: Writers, kind: str, *, any_one: bool) -> None:
    """A branch or tag at a head, or at ``any_one`` of the snapshots."""
    snapshot_id = _some_snapshot(writers, any_one=any_one)
    if snapshot_id is not None:
        writers.names += 1
        _set_ref(writers, f"{kind[0]}{writers.names}", snapshot_id, kind)


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
            _set_ref(writers, MAIN, ahead, "branch")
            return


def roll_back(writers: Writers) -> None:
    table, now, ancestors = writers.table, writers.head(), []
    while now is not None and now in table.snapshots:
        ancestors.append(now)
        now = table.snapshots[now].parent_id
    if len(ancestors) > 1:
        _set_ref(writers, MAIN, writers.chance.choice(ancestors[1:]), "branch")


def replace_table(writers: Writers) -> None:
    """``CREATE OR REPLACE TABLE AS SELECT``: the history stays, the head has no parent."""
    rows = writers.new_rows(writers.chance.randint(1, 4))
    files = writers.write(rows, writers.table.default_spec_id)
    writers.commit(MAIN, "append", with_new({}, rows), added=files, replaces_table=True)


def recreate(writers: Writers) -> None:
    """Dropped and created anew under the same name, elsewhere."""
    writers.trace.append(f"{WRITER}: dropped and created anew")
    writers.create(writers.version)


def rename(writers: Writers) -> None:
    world: World = writers.world
    writers.names += 1
    world.name = replace(world.name, name=f"t{writers.names}")
    writers.trace.append(f"{WRITER}: renamed to {world.name}")


# Writers that read the table now and commit later.


def prepare(writers: Writers) -> Slow | None:
    """Read the head and write files; the commit comes later, if what Iceberg-Java validates still holds."""
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
    """Iceberg-Java's ``rewrite_data_files``: outputs keep the sequence number at which they were planned, and only new
    position deletes and vectors of the inputs stop it."""
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
            return False  # Java overlooks that rows leave the reach of a delete, or come into that of another one
        paths = {file.path for file in some}
        vectors = {f.key for f in writers.reader.files(writers.manifest_list(head)) if f.referenced in paths}
        removed = {file.key for file in some} | vectors
        rows = writers.model(head)
        writers.commit(branch, "replace", rows, added=written, removed=removed, sequence_number=number)
        return True

    return land


def _slow_update(writers: Writers, branch: str, start: int) -> Slow | None:
    """Copy on write: one file is written anew without a row of it; any new delete of the file stops it."""
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
    Verb.POSITIONS: delete_positions,
    Verb.KEYS: delete_keys,
    Verb.UPSERT: upsert,
    Verb.EVOLVE: evolve,
    Verb.REPARTITION: repartition,
    Verb.SORT: sort,
    Verb.DROP_REF: drop_ref,
    Verb.FAST_FORWARD: fast_forward,
    Verb.ROLL_BACK: roll_back,
    Verb.REPLACE: replace_table,
    Verb.RECREATE: recreate,
    Verb.UPGRADE: upgrade,
}
