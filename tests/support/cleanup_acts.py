"""What may happen to a table between two cleanings: what other engines do, and what we do.

Each act draws what it does from ``chance``; one that the table does not allow raises or changes nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress

from icekeeper.administration.pins import stage_load
from icekeeper.errors import StorageError
from icekeeper.metadata.document import MAIN
from icekeeper.policy import Operation
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import Pin
from icekeeper.storage.paths import normalise
from support.cleanup_histories import Act
from support.cleanup_table import CleanupTable
from support.files_on_disk import local_path
from support.maintained_table import NAME

_METADATA = ".metadata.json"


def _append(table: CleanupTable, chance: random.Random) -> None:
    append = table.java.table.newAppend().appendFile(table.new_file(chance))
    branch = chance.choice((MAIN, *table.branches))
    append.toBranch(branch).commit()
    table.trace.append(f"  to {branch}")


def _stage(table: CleanupTable, chance: random.Random) -> None:
    table.java.table.newAppend().appendFile(table.new_file(chance)).stageOnly().commit()


def _publish(table: CleanupTable, chance: random.Random) -> None:
    """A staged snapshot, or one of another branch: Java adds its files again, in manifests of their own."""
    table.java.table.manageSnapshots().cherrypick(table.some_snapshot(chance)).commit()


def _upsert(table: CleanupTable, chance: random.Random) -> None:
    data = table.new_file(chance)
    row = table.new_row(chance)
    (partition,) = table.java.partitions(table.spec_id, [row])
    delete = table.java.equality_deletes([row], [1], table.spec_id, partition, "parquet")
    table.java.row_delta([data], [delete])


def _delete_positions(table: CleanupTable, chance: random.Random) -> None:
    if (found := table.live_file(chance)) is None:
        return
    path, spec_id, partition = found
    if table.format_version > 2:
        table.java.delete_by_vectors({path: [0]})
    elif table.format_version > 1:
        table.java.row_delta(deletes=[table.java.position_deletes({path: [0]}, spec_id, partition, "parquet")])


def _drop_file(table: CleanupTable, chance: random.Random) -> None:
    if (found := table.live_file(chance)) is not None:
        table.java.replace([found[0]])


def _add_again(table: CleanupTable, chance: random.Random) -> None:
    """A live file once more, in a manifest of its own: readers then read its rows twice.  Where there are vectors
    Java reads nothing any more, because they are older than the file."""
    found = table.live_file(chance)
    if found is not None and found[0] in table.made and not table.table.live_deletes():
        table.java.table.newFastAppend().appendFile(table.made[found[0]]).commit()


def _branch(table: CleanupTable, chance: random.Random) -> None:
    name = table.new_name("b")
    manage = table.java.table.manageSnapshots().createBranch(name, table.some_snapshot(chance))
    if chance.random() < 0.3:
        manage = manage.setMinSnapshotsToKeep(name, chance.randint(1, 3))
    if chance.random() < 0.3:
        manage = manage.setMaxSnapshotAgeMs(name, 1 << 40)
    manage.commit()
    _age(table, name, chance)


def _tag(table: CleanupTable, chance: random.Random) -> None:
    name = table.new_name("t")
    table.java.table.manageSnapshots().createTag(name, table.some_snapshot(chance)).commit()
    _age(table, name, chance)


def _age(table: CleanupTable, name: str, chance: random.Random) -> None:
    """Some refs are too old at once."""
    if chance.random() < 0.4:
        age_ms = chance.choice((1, 1 << 40))
        table.java.set_max_ref_age(name, age_ms)
        table.aging |= {name} if age_ms == 1 else set()


def _fast_forward(table: CleanupTable, chance: random.Random) -> None:
    if table.branches:
        table.java.table.manageSnapshots().fastForwardBranch(MAIN, chance.choice(table.branches)).commit()


def _drop_ref(table: CleanupTable, chance: random.Random) -> None:
    names = sorted(table.refs.keys() - {MAIN})
    if names:
        name = chance.choice(names)
        manage = table.java.table.manageSnapshots()
        (manage.removeBranch(name) if name in table.branches else manage.removeTag(name)).commit()


def _roll_back(table: CleanupTable, chance: random.Random) -> None:
    table.java.roll_back(table.some_snapshot(chance))


def _statistics(table: CleanupTable, chance: random.Random) -> None:
    table.java.add_statistics(table.some_snapshot(chance))


def _partition_statistics(table: CleanupTable, chance: random.Random) -> None:
    table.java.add_partition_statistics(table.some_snapshot(chance))


def _evolve(table: CleanupTable, chance: random.Random) -> None:
    name = table.new_name("c")
    table.java.evolve(lambda update: update.addColumn(name, table.java.type("int")))


def _repartition(table: CleanupTable, chance: random.Random) -> None:
    if table.java.spec["fields"] and table.java.spec["fields"][-1]["transform"] != "void":
        gone = table.java.spec["fields"][-1]["name"]
        table.java.repartition(lambda update: update.removeField(gone))
    else:
        table.java.repartition(lambda update: update.addField("part"))


def _upgrade(table: CleanupTable, chance: random.Random) -> None:
    if table.format_version < 3:
        table.format_version += 1
        table.java.set_property("format-version", str(table.format_version))


def _pin(table: CleanupTable, chance: random.Random) -> None:
    loaded = table.table.runtime.catalog.load(NAME)
    snapshot_id = table.some_snapshot(chance)
    identity = TableIdentity("shared", "shared", NAME, loaded.metadata.uuid or "")
    pin = Pin(
        identity=identity,
        name=table.new_name("pin"),
        snapshot_id=snapshot_id,
        metadata_location=loaded.metadata_location,
        expires_ms=1 << 60,
    )
    table.table.runtime.state.add_pin(pin)
    table.pinned.add(snapshot_id)


def _stage_load(table: CleanupTable, chance: random.Random) -> None:
    """A file of a load that may yet be adopted."""
    path = str(table.new_file(chance).location())
    handle = table.table.runtime.table(NAME)
    stage_load(handle, table.new_name("load"), [path], [])
    table.staged.add(normalise(path))


def _stray(table: CleanupTable, chance: random.Random) -> None:
    """What a writer that died leaves behind: data, a manifest, a metadata file that was never swapped in."""
    table.new_file(chance)
    metadata = local_path(table.java.metadata_location)
    name = table.new_name("stray")
    (metadata.parent / f"{name}-m0.avro").write_bytes(b"Obj")
    if chance.random() < 0.3:
        (metadata.parent / f"99999-{name}{_METADATA}").write_bytes(metadata.read_bytes())


def _compact(table: CleanupTable, chance: random.Random) -> None:
    table.ours(Operation.COMPACT)


def _rewrite_manifests(table: CleanupTable, chance: random.Random) -> None:
    table.ours(Operation.REWRITE_MANIFESTS)


def _rewrite_deletes(table: CleanupTable, chance: random.Random) -> None:
    table.ours(Operation.REWRITE_POSITION_DELETES)


def _compute_statistics(table: CleanupTable, chance: random.Random) -> None:
    table.ours(Operation.COMPUTE_STATISTICS)


def _expire(table: CleanupTable, chance: random.Random) -> None:
    settings = {"max_snapshots_to_keep": str(chance.randint(1, 4))}
    if chance.random() < 0.5:
        settings["snapshot_expire_limit"] = "1"
    if chance.random() < 0.3:
        settings["clean_expired_metadata"] = "true"
    if chance.random() < 0.3:
        _expire_named(table, chance)
    table.expire(**settings)


def _expire_named(table: CleanupTable, chance: random.Random) -> None:
    """By id, out of the middle of a history; what is protected is refused before anything runs."""
    pinned = [s.timestamp_ms for i, s in table.table.reader.metadata.snapshots.items() if i in table.pinned]
    named = table.some_snapshot(chance)
    moment = table.table.reader.metadata.snapshots[named].timestamp_ms
    if named not in table.refs.values() and all(moment < pin for pin in pinned):
        table.expire(snapshot_expire_ids=str(named))


def _sweep(table: CleanupTable, chance: random.Random) -> None:
    table.sweep()


def _crash(table: CleanupTable, chance: random.Random) -> None:
    operation = chance.choice((Operation.COMPACT, Operation.REWRITE_MANIFESTS, Operation.EXPIRE_SNAPSHOTS))
    with suppress(StorageError):
        table.killed_at(chance.randint(1, 40), lambda: table.ours(operation, max_snapshots_to_keep="2"))


ACTS: Mapping[Act, Callable[[CleanupTable, random.Random], None]] = {
    Act.APPEND: _append,
    Act.UPSERT: _upsert,
    Act.DELETE_POSITIONS: _delete_positions,
    Act.DROP_FILE: _drop_file,
    Act.ADD_AGAIN: _add_again,
    Act.STAGE: _stage,
    Act.PUBLISH: _publish,
    Act.BRANCH: _branch,
    Act.TAG: _tag,
    Act.FAST_FORWARD: _fast_forward,
    Act.DROP_REF: _drop_ref,
    Act.ROLL_BACK: _roll_back,
    Act.STATISTICS: _statistics,
    Act.PARTITION_STATISTICS: _partition_statistics,
    Act.EVOLVE: _evolve,
    Act.REPARTITION: _repartition,
    Act.UPGRADE: _upgrade,
    Act.PIN: _pin,
    Act.STAGE_LOAD: _stage_load,
    Act.STRAY: _stray,
    Act.COMPACT: _compact,
    Act.REWRITE_MANIFESTS: _rewrite_manifests,
    Act.REWRITE_DELETES: _rewrite_deletes,
    Act.COMPUTE_STATISTICS: _compute_statistics,
    Act.EXPIRE: _expire,
    Act.SWEEP: _sweep,
    Act.CRASH: _crash,
}
