"""How schema and partition spec of a table change between its commits."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from support.history_table import HistoryTable
from support.values import promoted


def evolve(table: HistoryTable, chance: random.Random) -> None:
    """Change one column of the current schema, or add one."""
    schema = table.java.schema
    keys = {i for delete in table.model.equality for i in delete.field_ids}
    # What deletes go by changes most often.
    field = chance.choice(
        [f for f in schema["fields"] if f["id"] in keys and chance.random() < 0.7] or schema["fields"]
    )
    name, kind = field["name"], field["type"]
    partitioned = {int(part["source-id"]) for spec in table.specs.values() for part in spec["fields"]}
    table.names += 1
    # A name that was free again may come back with another id.
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
    """Add a field to the partition spec, or take one away."""
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
    """What a column may be partitioned by, as ``Expressions`` has it: method, width."""
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
