"""Random histories of tables, run by Iceberg-Java and by the oracle."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from support.java_writer import JavaTable, JavaTables
from support.model.actions import Step, Verb
from support.model.oracle import EqualityDelete, ModelFile, PositionDelete, Row, TableModel
from support.values import fits, promoted, random_row, random_value

# Tables with histories and policies of compaction, drawn by hypothesis.
#
# A step is a verb of the model and a seed.  Its effect depends on the table, so any list of steps is a history, and
# shrinking only removes steps.

FORMAT_VERSIONS = (1, 2, 2, 3, 3)
FILE_FORMATS = (("parquet",), ("parquet",), ("parquet", "avro"), ("parquet", "orc", "avro"))
STRATEGIES = ("binpack", "binpack", "sort", "zorder")

_PRIMITIVES = (
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "string",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "decimal(9, 2)",
    "decimal(20, 3)",
    "uuid",
    "fixed[3]",
    "binary",
)
_SINCE_V3 = ("timestamp_ns", "timestamptz_ns")
_NESTED = ("struct", "list", "map", "list of structs")


_WITHOUT_DELETES = (
    *(Verb.APPEND,) * 4,
    *(Verb.EVOLVE,) * 2,
    Verb.OVERWRITE,
    Verb.REPARTITION,
    Verb.TAG,
    Verb.ROLL_BACK,
    Verb.UPGRADE,
)
_WITH_DELETES = _WITHOUT_DELETES + (Verb.KEYS,) * 3 + (Verb.POSITIONS, Verb.UPSERT) * 2
_MEANWHILE = (Verb.APPEND, Verb.KEYS, Verb.UPSERT, Verb.POSITIONS, Verb.OVERWRITE)


@dataclass(frozen=True, slots=True)
class History:
    """The history of a table from its creation on; ``meanwhile`` runs between the plan and the commit of compaction."""

    format_version: int
    column_types: tuple[str, ...]
    file_formats: tuple[str, ...]
    one_row_a_group: bool
    seed: int
    steps: tuple[Step, ...]
    meanwhile: tuple[Step, ...]

    @property
    def upgrades(self) -> bool:
        """Whether the format version changes."""
        return self.format_version < 3 and any(step.verb is Verb.UPGRADE for step in (*self.steps, *self.meanwhile))

    @property
    def schema(self) -> dict[str, Any]:
        """The schema before Java assigns new ids; columns are ``c0``, ``c1``, …, and the first is required."""
        ids = iter(range(1, 100))
        fields = [
            {"id": next(ids), "name": f"c{i}", "type": _json_type(kind, ids), "required": i == 0}
            for i, kind in enumerate(self.column_types)
        ]
        return {"type": "struct", "schema-id": 0, "fields": fields}


def _json_type(kind: str, ids: Any) -> Any:
    def field(name: str, primitive: str) -> dict[str, Any]:
        return {"id": next(ids), "name": name, "type": primitive, "required": False}

    if kind == "struct":
        return {"type": "struct", "fields": [field("x", "int"), field("y", "string"), field("z", "double")]}
    if kind == "list":
        return {"type": "list", "element-id": next(ids), "element": "int", "element-required": False}
    if kind == "map":
        kinds = {"key-id": next(ids), "key": "string", "value-id": next(ids), "value": "decimal(9, 2)"}
        return {"type": "map", **kinds, "value-required": False}
    if kind == "list of structs":
        element = {"type": "struct", "fields": [field("n", "int"), field("m", "date")]}
        return {"type": "list", "element-id": next(ids), "element": element, "element-required": False}
    return kind


_SEEDS = st.integers(0, 9999)


def _steps(verbs: tuple[Verb, ...], least: int, most: int) -> st.SearchStrategy[tuple[Step, ...]]:
    step = st.builds(Step, st.sampled_from(verbs), _SEEDS)
    return st.lists(step, min_size=least, max_size=most).map(tuple)


@st.composite
def histories(draw: st.DrawFn, format_versions: tuple[int, ...] = FORMAT_VERSIONS) -> History:
    """A history of three to twelve steps; the first is an append."""
    version = draw(st.sampled_from(format_versions))
    keys = draw(st.lists(st.sampled_from(("int", "long", "string")), min_size=1, max_size=2))
    kinds = _PRIMITIVES + _NESTED + (_SINCE_V3 if version > 2 else ())
    others = draw(st.lists(st.sampled_from(kinds), max_size=4))
    verbs = _WITHOUT_DELETES if version == 1 else _WITH_DELETES
    happens = draw(st.integers(0, 2)) == 0
    meanwhile = draw(_steps(tuple(v for v in _MEANWHILE if v in verbs), 1, 2)) if happens else ()
    first = Step(Verb.APPEND, draw(_SEEDS))
    steps = draw(_steps(verbs, 2, 11))
    formats = draw(st.sampled_from(FILE_FORMATS))
    narrow = draw(st.booleans())
    return History(version, (*keys, *others), formats, narrow, draw(_SEEDS), (first, *steps), meanwhile)


@st.composite
def policies(draw: st.DrawFn) -> dict[str, str]:
    """Settings of a compaction with targets so small that a partition becomes several files.

    The sort columns are chosen from the table later (:meth:`support.model.java_histories.HistoryRun.fitted`).
    """
    settings = {
        "strategy": draw(st.sampled_from(STRATEGIES)),
        "proof": draw(st.sampled_from(("counts", "full"))),
        "rewrite_all": draw(st.sampled_from(("true", "false"))),
        "min_input_files": draw(st.sampled_from(("2", "3"))),
        "target_file_size_mb": draw(st.sampled_from(("256", "256", "0.004", "0.002"))),
        "output_spec": draw(st.sampled_from(("current", "keep"))),
        "partial_progress": draw(st.sampled_from(("0", "1", "2"))),
        "min_row_group_copy_bytes": draw(st.sampled_from(("1", "1", "none"))),
    }
    if draw(st.integers(0, 3)) == 0:
        settings["max_files_to_rewrite"] = draw(st.sampled_from(("3", "5")))
    if draw(st.integers(0, 3)) == 0:
        settings["delete_compaction_min_deletes"] = "2"
    return settings


# A table of Iceberg-Java, and the oracle's model of the table.

# Manifests are not merged, so that deletes and data of many sequence numbers are in separate manifests.
_PROPERTIES = {"commit.manifest-merge.enabled": "false", "write.metadata.metrics.default": "truncate(16)"}
_ONE_ROW_A_GROUP = {
    "write.parquet.row-group-size-bytes": "1",
    "write.parquet.row-group-check-min-record-count": "1",
    "write.parquet.row-group-check-max-record-count": "1",
}
# Java 1.10 reads several keys of fixed bytes all as the last key, cannot read keys of nanoseconds, and by bounds skips
# a delete of NaN that it needs (platform: java-cannot-read).
_NO_KEYS = ("fixed[3]", "timestamp_ns", "timestamptz_ns", "float", "double")
_UNPARTITIONED: dict[str, Any] = {"spec-id": 0, "fields": []}


class HistoryTable:
    """A table of Java and its model; ``trace`` has the result of every step."""

    def __init__(self, history: History, tables: JavaTables, folder: Path) -> None:
        properties = {**_PROPERTIES, "format-version": str(history.format_version)}
        # Java writes bounds of uuids as bytes and reads them as signed numbers: it skips deletes that it needs.
        properties |= {
            f"write.metadata.metrics.column.c{i}": "counts" for i, t in enumerate(history.column_types) if t == "uuid"
        }
        if history.one_row_a_group:
            properties |= _ONE_ROW_A_GROUP
        self.java: JavaTable = tables.create(history.schema, _UNPARTITIONED, properties, folder)
        self.model = TableModel()
        self.defaults: dict[str, Any] = {}
        self.trace: list[str] = []
        self.format_version = history.format_version
        self.formats = history.file_formats
        self.past: list[tuple[int, TableModel]] = []
        """The line of snapshots with their models, without snapshots that a rollback removed."""
        self.names = 0

    @property
    def expected(self) -> list[dict[str, Any]]:
        """The rows that a reader must find now."""
        return self.model.rows(self.java.schema, self.defaults)

    def fitted(self, policy: Mapping[str, str]) -> dict[str, str]:
        """The policy with sort columns of the current schema."""
        chance = random.Random(str(policy))
        names = [f["name"] for f in self.java.schema["fields"] if isinstance(f["type"], str)]
        chosen = chance.sample(names, min(len(names), 2))
        if policy["strategy"] == "sort":
            terms = (f"{c} {chance.choice(('asc', 'desc'))} nulls {chance.choice(('first', 'last'))}" for c in chosen)
            return {**policy, "sort_order": ", ".join(terms)}
        if policy["strategy"] == "zorder":
            return {**policy, "sort_order": ",".join(chosen)}
        return dict(policy)

    def committed(self, model: TableModel) -> None:
        """Record that Java has committed a snapshot with the rows and files of ``model``."""
        self.model = model
        snapshot_id = self.java.snapshot_id
        assert snapshot_id is not None
        self.past.append((snapshot_id, model))

    def numbered(self, files: Sequence[tuple[Any, ModelFile]]) -> list[ModelFile]:
        """Files with the sequence number of the commit that added them."""
        number = self.java.sequence_number
        return [ModelFile(f.path, number, f.spec_id, f.partition, f.rows) for _, f in files]

    # -- choices

    @property
    def schemas(self) -> list[int]:
        return [int(schema_id) for schema_id in self.java.table.schemas()]

    @property
    def specs(self) -> dict[int, Mapping[str, Any]]:
        return {int(i): self.java.spec_of(int(i)) for i in self.java.table.specs()}

    def some_spec(self, chance: random.Random) -> Mapping[str, Any]:
        """Mostly the current spec."""
        return chance.choice(list(self.specs.values())) if chance.random() < 0.3 else self.java.spec

    def key_columns(self, schema: Mapping[str, Any], chance: random.Random) -> list[int]:
        """Ids of columns that an equality delete may use, including dropped columns."""
        plain = [f["id"] for f in schema["fields"] if isinstance(f["type"], str) and f["type"] not in _NO_KEYS]
        dropped = sorted(set(plain) - {f["id"] for f in self.java.schema["fields"]})
        plain = dropped if dropped and chance.random() < 0.5 else plain
        return sorted(chance.sample(plain, min(len(plain), chance.choice((1, 2, 2)))))

    def like_an_old_one(
        self, row: Row, ids: Sequence[int], chance: random.Random, schema: Mapping[str, Any] | None = None
    ) -> Row:
        """The row, mostly with the key of a current or earlier row of the table."""
        rows = [old for file in self.model.files for old in file.rows]
        if not rows or chance.random() < 0.2:
            return row
        old, made = chance.choice(rows), dict(row)
        for field in (schema or self.java.schema)["fields"]:
            if field["id"] in ids:
                value = old.get(str(field["id"]))
                if (value is None and field["required"]) or (value is not None and not fits(field["type"], value)):
                    value = random_value(field["type"], chance, required=True)
                made[str(field["id"])] = value
        return made


# Changes of schema and partition spec between commits.


def evolve(table: HistoryTable, chance: random.Random) -> None:
    """Change or add a column of the current schema."""
    schema = table.java.schema
    keys = {i for delete in table.model.equality for i in delete.field_ids}
    # Key columns of deletes change most often.
    field = chance.choice(
        [f for f in schema["fields"] if f["id"] in keys and chance.random() < 0.7] or schema["fields"]
    )
    name, kind = field["name"], field["type"]
    partitioned = {int(part["source-id"]) for spec in table.specs.values() for part in spec["fields"]}
    table.names += 1
    # The name of a removed column may return with another id.
    new = f"c{chance.randrange(9)}"
    new = f"n{table.names}" if new in {f["name"] for f in schema["fields"]} else new
    if isinstance(kind, Mapping) and kind["type"] == "struct" and chance.random() < 0.5:
        what, change = _evolve_struct(table, name, kind, chance)
    elif (wider := promoted(kind)) is not None and chance.random() < 0.7:
        what, change = f"{name} is {wider}", lambda u: u.updateColumn(name, table.java.type(wider))
    elif field["required"]:
        what, change = f"{name} is optional", lambda u: u.makeColumnOptional(name)
    else:
        added = chance.choice(("int", "string", "date", "decimal(9, 2)"))
        changes: list[tuple[str, Callable[[Any], object]]] = [
            (f"{name} renamed {new}", lambda u: u.renameColumn(name, new)),
            (f"{name} first", lambda u: u.moveFirst(name)),
            (f"{new} {added} added", lambda u: u.addColumn(new, table.java.type(added))),
        ]
        if table.format_version > 2 and "orc" not in table.formats:  # Java cannot fill in defaults from ORC
            default = chance.randrange(9)
            number, literal = table.java.type("int"), table.java.literal(default)
            changes.append((f"{new} added with {default}", lambda u: u.addColumn(new, number, literal)))
        if len(schema["fields"]) > 2 and field["id"] not in partitioned:
            changes += [(f"{name} dropped", lambda u: u.deleteColumn(name))] * 4
        what, change = chance.choice(changes)
    table.java.evolve(change)
    table.trace.append(f"  {what}")
    for column in table.java.schema["fields"]:
        if "initial-default" in column:
            table.defaults[str(column["id"])] = column["initial-default"]


def _evolve_struct(
    table: HistoryTable, name: str, kind: Mapping[str, Any], chance: random.Random
) -> tuple[str, Callable[[Any], object]]:
    inner = chance.choice(kind["fields"])["name"]
    new = f"n{table.names}"
    changes: list[tuple[str, Callable[[Any], object]]] = [
        (f"{name}.{new} added", lambda u: u.addColumn(name, new, table.java.type("long"))),
        (f"{name}.{inner} renamed {new}", lambda u: u.renameColumn(f"{name}.{inner}", new)),
        (f"{name}.{inner} first", lambda u: u.moveFirst(f"{name}.{inner}")),
    ]
    if len(kind["fields"]) > 1:
        changes.append((f"{name}.{inner} dropped", lambda u: u.deleteColumn(f"{name}.{inner}")))
    return chance.choice(changes)


def repartition(table: HistoryTable, chance: random.Random) -> None:
    """Add a field to the partition spec, or remove a field."""
    spec, schema = table.java.spec, table.java.schema
    live = [part for part in spec["fields"] if part["transform"] != "void"]
    sources = {int(part["source-id"]) for part in live}
    fields = [f for f in schema["fields"] if f["id"] not in sources and _transforms(f["type"])]
    if live and (len(live) > 1 or not fields or chance.random() < 0.4):
        gone = chance.choice(live)["name"]
        table.java.repartition(lambda update: update.removeField(gone))
        table.trace.append(f"  partition field {gone} removed")
    elif fields:
        field = chance.choice(fields)
        transform, *width = chance.choice(_transforms(field["type"]))
        expressions = table.java.iceberg.expressions.Expressions
        term = getattr(expressions, transform)(field["name"], *width)
        table.names += 1
        name = f"p{table.names}"
        table.java.repartition(lambda update: update.addField(name, term))
        table.trace.append(f"  partitioned by {transform}{tuple(width)} of {field['name']} as {name}")


def _transforms(kind: Any) -> list[tuple[Any, ...]]:
    """The partition transforms of a column as methods of ``Expressions``: method, width."""
    if not isinstance(kind, str) or kind.startswith(("float", "double", "fixed")) or kind.endswith(("time", "_ns")):
        return []
    transforms: list[tuple[Any, ...]] = [("ref",)]
    if kind != "boolean":
        transforms.append(("bucket", 3))
    if kind.startswith(("int", "long", "string", "binary", "decimal")):
        transforms.append(("truncate", 2))
    if kind == "date" or kind.startswith("timestamp"):
        transforms += [("day",), ("month",)]
    return transforms


# Runs a history twice: by Iceberg-Java on a real table, and in the oracle's model.


class HistoryRun(HistoryTable):
    """Runs the steps of a history."""

    def __init__(self, history: History, tables: JavaTables, folder: Path) -> None:
        super().__init__(history, tables, folder)
        chance = random.Random(history.seed)
        for _ in range(chance.choice((0, 1, 1, 2))):
            repartition(self, chance)
        for step in history.steps:
            self.take(step)

    def take(self, step: Step) -> None:
        """Take a step on both; a step that is impossible for this table changes neither."""
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
        """Write one or two files per partition."""
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
        """Commit new rows and deletes of their keys in their partitions, as Flink does."""
        ids = self.key_columns(self.java.schema, chance)
        spec = self.some_spec(chance)
        rows = [self.like_an_old_one(random_row(self.java.schema, chance), ids, chance) for _ in range(3)]
        files = self._write(rows, spec, chance)
        deletes = [self._equality(file.rows, ids, spec, file.partition, chance) for _, file in files]
        # Flink deletes a row that the same commit overwrites by its position.
        twice = files[0][1] if chance.random() < 0.5 else None
        vectors = [] if twice is None else self._first_row_of(twice)
        self.java.row_delta([file for file, _ in files], [*(delete for delete, _ in deletes), *vectors])
        number = self.java.sequence_number
        model = self.model.with_files(*self.numbered(files)).with_equality(*(make(number) for _, make in deletes))
        if twice is not None:
            model = model.with_positions(PositionDelete(number, twice.path, frozenset({0})))
        self.committed(model)

    def _first_row_of(self, file: ModelFile) -> list[Any]:
        """A delete of the file's first row, for the commit that adds the file."""
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
        """Delete by keys as a writer that may be late, with an older schema and for a partition of an older spec."""
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
        """Java's delete file, and a function that makes the model's delete from its sequence number."""
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
            return  # Java 1.10 cannot plan such a table, so it cannot find the vectors to replace
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
        Verb.KEYS: _delete_keys,
        Verb.POSITIONS: _delete_positions,
        Verb.OVERWRITE: _drop_files,
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
