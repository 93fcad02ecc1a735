"""Carries out a history twice: by Iceberg-Java on a real table, and in the oracle's model of it."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.histories import History, Step, Verb
from support.history_evolution import evolve, repartition
from support.history_table import HistoryTable
from support.java_writer import JavaTables
from support.oracle import EqualityDelete, ModelFile, PositionDelete, Row
from support.values import random_row


class HistoryRun(HistoryTable):
    """Takes the steps of a history one by one."""

    def __init__(self, history: History, tables: JavaTables, folder: Path) -> None:
        super().__init__(history, tables, folder)
        chance = random.Random(history.seed)
        for _ in range(chance.choice((0, 1, 1, 2))):
            repartition(self, chance)
        for step in history.steps:
            self.take(step)

    def take(self, step: Step) -> None:
        """Do one step to both; what cannot be done to this table leaves both as they are."""
        self._VERBS[step.verb](self, random.Random(step.seed))

    # -- rows

    def _append(self, chance: random.Random) -> None:
        spec = self.some_spec(chance)
        rows = [random_row(self.java.schema, chance) for _ in range(chance.randint(1, 8))]
        files = self._write(rows, spec, chance)
        self.java.append(file for file, _ in files)
        self.committed(self.model.with_files(*self.numbered(files)))

    def _write(
        self, rows: Sequence[Row], spec: Mapping[str, Any], chance: random.Random
    ) -> list[tuple[Any, ModelFile]]:
        """One file per partition, or two."""
        by_partition: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row, partition in zip(rows, self.java.partitions(spec["spec-id"], rows), strict=True):
            by_partition[partition].append(row)
        files = []
        for partition, mine in by_partition.items():
            split = chance.randrange(len(mine)) if chance.random() < 0.3 else 0
            for part in (mine[:split], mine[split:]):
                if part:
                    kind = chance.choice(self.formats)
                    file = self.java.data_file(part, spec["spec-id"], partition, kind)
                    files.append((file, ModelFile(file.location(), 0, spec["spec-id"], partition, tuple(part))))
                    self.trace.append(f"  {kind} {_short(file)} spec {spec['spec-id']} {partition}: {part}")
        return files

    def _upsert(self, chance: random.Random) -> None:
        """New rows, and in the same commit deletes of their keys, in their partitions, as Flink writes them."""
        ids = self.key_columns(self.java.schema, chance)
        spec = self.some_spec(chance)
        rows = [self.like_an_old_one(random_row(self.java.schema, chance), ids, chance) for _ in range(3)]
        files = self._write(rows, spec, chance)
        deletes = [self._equality(file.rows, ids, spec, file.partition, chance) for _, file in files]
        # A row that the same commit overwrites is deleted by its position.
        twice = files[0][1] if chance.random() < 0.5 else None
        vectors = [] if twice is None else self._first_row_of(twice)
        self.java.row_delta([file for file, _ in files], [*(delete for delete, _ in deletes), *vectors])
        number = self.java.sequence_number
        model = self.model.with_files(*self.numbered(files)).with_equality(*(make(number) for _, make in deletes))
        if twice is not None:
            model = model.with_positions(PositionDelete(number, twice.path, frozenset({0})))
        self.committed(model)

    def _first_row_of(self, file: ModelFile) -> list[Any]:
        """A delete of it, for the commit that brings the file."""
        positions = {file.path: [0]}
        self.trace.append(f"  and the first row of {_name(file.path)}")
        if self.format_version > 2:
            return self.java.vectors(positions, file.spec_id, file.partition)
        return [self.java.position_deletes(positions, file.spec_id, file.partition, "parquet")]

    def _drop_files(self, chance: random.Random) -> None:
        if not self.model.files:
            return
        gone = chance.choice(self.model.files)
        rows = [random_row(self.java.schema, chance)] if chance.random() < 0.5 else []
        files = self._write(rows, self.some_spec(chance), chance)
        self.java.replace([gone.path], [file for file, _ in files])
        self.trace.append(f"  {_name(gone.path)} dropped")
        self.committed(self.model.without([gone.path]).with_files(*self.numbered(files)))

    # -- deletes

    def _delete_keys(self, chance: random.Random) -> None:
        """By a writer that may be late: with an older schema, for a partition of an older spec."""
        schema_id = chance.choice(sorted(self.schemas)) if chance.random() < 0.4 else self.java.schema["schema-id"]
        schema = self.java.schema_of(schema_id)
        ids = self.key_columns(schema, chance)
        unpartitioned = [spec for spec in self.specs.values() if _is_unpartitioned(spec)]
        spec = chance.choice(unpartitioned) if chance.random() < 0.3 else self.some_spec(chance)
        candidates = [file.partition for file in self.model.files if file.spec_id == spec["spec-id"]]
        if candidates and chance.random() < 0.9:
            partition = chance.choice(candidates)
        else:
            (partition,) = self.java.partitions(spec["spec-id"], [random_row(self.java.schema, chance)])
        keys = [self.like_an_old_one(random_row(schema, chance), ids, chance, schema) for _ in range(3)]
        delete, make = self._equality(keys, ids, spec, partition, chance, schema)
        self.java.row_delta(deletes=[delete])
        self.committed(self.model.with_equality(make(self.java.sequence_number)))

    def _equality(
        self,
        rows: Sequence[Row],
        ids: Sequence[int],
        spec: Mapping[str, Any],
        partition: tuple[Any, ...],
        chance: random.Random,
        schema: Mapping[str, Any] | None = None,
    ) -> tuple[Any, Callable[[int], EqualityDelete]]:
        """Java's delete file, and the model's once it has a number."""
        spec_id, kind = spec["spec-id"], chance.choice(self.formats)
        known = (schema or self.java.schema)["schema-id"]
        keys = tuple({str(i): row.get(str(i)) for i in ids} for row in rows)
        delete = self.java.equality_deletes(keys, ids, spec_id, partition, kind, known)
        is_global = _is_unpartitioned(spec)
        self.trace.append(f"  {kind} {_short(delete)} by {ids} spec {spec_id} {partition}: {list(keys)}")

        def make(number: int) -> EqualityDelete:
            return EqualityDelete(number, spec_id, None if is_global else partition, tuple(ids), keys)

        return delete, make

    def _delete_positions(self, chance: random.Random) -> None:
        if not self.model.files:
            return
        columns = {field["id"] for field in self.java.schema["fields"]}
        if self.format_version > 2 and any(set(delete.field_ids) - columns for delete in self.model.equality):
            return  # Java 1.10 cannot plan such a table, so it does not find the vectors to replace
        first = chance.choice(self.model.files)
        scope = (first.spec_id, first.partition)
        near = [f for f in self.model.files if self.format_version > 2 or (f.spec_id, f.partition) == scope]
        files = {f.path: f for f in (first, *chance.sample(near, min(len(near), chance.randrange(3))))}
        chosen = {
            path: sorted(chance.sample(range(len(files[path].rows)), min(len(files[path].rows), chance.randint(1, 3))))
            for path in sorted(files)
        }
        if self.format_version > 2:
            self.java.delete_by_vectors(chosen)
        else:
            kind, whole = chance.choice(self.formats), chance.random() < 0.7
            delete = self.java.position_deletes(chosen, first.spec_id, first.partition, kind, whole_paths=whole)
            self.java.row_delta(deletes=[delete])
        self.trace.append(f"  positions { {_name(path): positions for path, positions in chosen.items()} }")
        number = self.java.sequence_number
        deletes = (PositionDelete(number, path, frozenset(positions)) for path, positions in chosen.items())
        self.committed(self.model.with_positions(*deletes))

    # -- history

    def _upgrade(self, chance: random.Random) -> None:
        if self.format_version < 3:
            self.format_version += 1
            self.java.set_property("format-version", str(self.format_version))
            self.trace.append(f"  upgraded to v{self.format_version}")

    def _tag(self, chance: random.Random) -> None:
        if self.java.snapshot_id is not None:
            self.names += 1
            self.java.tag(f"t{self.names}")

    def _roll_back(self, chance: random.Random) -> None:
        if len(self.past) > 1:
            keep = chance.randrange(1, len(self.past))
            snapshot_id, self.model = self.past[keep - 1]
            del self.past[keep:]
            self.java.roll_back(snapshot_id)
            self.trace.append(f"  back to snapshot {keep}")

    _VERBS: Mapping[Verb, Callable[[HistoryRun, random.Random], None]] = {
        Verb.APPEND: _append,
        Verb.UPSERT: _upsert,
        Verb.DELETE_KEYS: _delete_keys,
        Verb.DELETE_POSITIONS: _delete_positions,
        Verb.DROP_FILES: _drop_files,
        Verb.EVOLVE: evolve,
        Verb.REPARTITION: repartition,
        Verb.TAG: _tag,
        Verb.ROLL_BACK: _roll_back,
        Verb.UPGRADE: _upgrade,
    }


def _is_unpartitioned(spec: Mapping[str, Any]) -> bool:
    return all(part["transform"] == "void" for part in spec["fields"])


def _short(file: Any) -> str:
    return _name(file.location())


def _name(path: str) -> str:
    return path.rpartition("-")[2]
