"""``icekeeper list``: the tables of catalogs, as scans saw them; ``icekeeper show``: the metadata of a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icekeeper.cli.arguments import AsJson, CatalogName, Catalogs, Patterns, Table, table_name
from icekeeper.cli.console import EXIT_OK, about, answer
from icekeeper.cli.reports import recorded_catalog
from icekeeper.errors import PolicyError
from icekeeper.machine.clock import iso_utc, system_clock
from icekeeper.text import counted, size_text

if TYPE_CHECKING:
    from rich.console import Console

    from icekeeper.metadata.document import Snapshot, TableMetadata


def _count(number: float) -> str:
    return f"{number:,.0f}"


_COLUMNS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "files": ("lake_data_files", _count),
    "live": ("lake_bytes", size_text),
    "average": ("lake_average_file_bytes", size_text),
    "history": ("lake_history_bytes", size_text),
    "orphans": ("lake_orphan_bytes", size_text),
    "delete files": ("lake_delete_files", _count),
    "snapshots": ("lake_snapshots", _count),
}
_USUAL = 2
"""How many of the columns a line of 80 characters has room for."""
_NONE = "–"
_STYLES = {"work": "yellow", "paused": "dim", "well": "green"}


class Output(StrEnum):
    """The forms of a list."""

    WIDE = "wide"
    NAMES = "names"


def list_tables(
    catalogs: Catalogs,
    patterns: Patterns = None,
    states: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="only tables in this state, such as damaged or work; repeatable"),
    ] = None,
    output: Annotated[
        Output | None, typer.Option("-o", help="wide: all columns; names: only names. Default: a line for a table")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """List tables with their state and sizes, most urgent first, as scans, passes and verify recorded them."""
    from rich.text import Text

    from icekeeper.health.table_state import TableState
    from icekeeper.machine.resources import variables_set
    from icekeeper.policy.policy_file import check_patterns, matches
    from icekeeper.state.open import open_state

    check_patterns(patterns or ())
    if unknown := set(states or ()) - set(TableState):
        raise PolicyError(f"--state takes {', '.join(TableState)}, not '{min(unknown)}'; repeat it for several")
    state, now_ms = open_state(variables_set(os.environ)), system_clock()
    documents = [recorded_catalog(state, name, now_ms) for name in dict.fromkeys(catalogs)]
    kept = ("name", "state", "priority", "observed_ms", "counters", "trouble", "reasons", "left_alone")
    tables = [
        {
            "catalog": document["catalog"],
            **{key: table[key] for key in kept if key in table},
            "waits": "waits" in table,
            "verified_ms": table.get("verified_ms", 0),
            "age_seconds": max(0, now_ms - table["observed_ms"]) // 1000,
        }
        for document in documents
        for table in document["tables"]
        if matches(table["name"], patterns or ()) and table["state"] in (states or list(TableState))
    ]
    blockers = list(dict.fromkeys(document["blocker"] for document in documents if "blocker" in document))
    document = {"status": "succeeded", "blockers": blockers, "tables": tables}
    console = answer(document, as_json=as_json)
    if output is Output.NAMES:
        for table in tables:
            console.print(table["name"], soft_wrap=True)
        return EXIT_OK
    for blocker in blockers:
        console.print(Text(blocker, style="red"), soft_wrap=True)
    none = "no table matches" if patterns or states else "the catalog has no table"
    _print_list(console, tables, none, now_ms, is_wide=output is Output.WIDE)
    return EXIT_OK


def _print_list(
    console: Console, tables: Sequence[Mapping[str, Any]], none: str, now_ms: int, *, is_wide: bool
) -> None:
    from rich.text import Text

    from icekeeper.health.table_state import TROUBLED, TableState, verified_text
    from icekeeper.report.terminal import print_rows

    def why(table: Mapping[str, Any]) -> str:
        if table["state"] in TROUBLED or table["state"] == TableState.WORK:
            return table.get("trouble") or "; ".join(table["reasons"])
        verified = verified_text(table["verified_ms"], now_ms)
        return "; ".join(filter(None, (table.get("left_alone"), verified)))

    columns = [*_COLUMNS][: None if is_wide else _USUAL]
    is_of_one = len({table["catalog"] for table in tables}) == 1
    heading = [Text(word, style="dim") for word in ("table", "state", *columns, "age", "why")]
    rows = [
        [
            Text(table["name"] if is_of_one else f"{table['catalog']} {table['name']}"),
            Text(TableState(table["state"]).heading, style=_STYLES.get(table["state"], "red")),
            *(
                Text(_NONE if key not in table["counters"] else shown(table["counters"][key]))
                for key, shown in map(_COLUMNS.__getitem__, columns)
            ),
            Text(_age(table["age_seconds"])),
            Text(why(table)),
        ]
        for table in tables
    ]
    print_rows(console, [heading, *rows] if rows else [], none, one_line=not is_wide)


def _age(seconds: int) -> str:
    """``59m``, ``71h`` or ``3d``."""
    if seconds < 3_600:
        return f"{seconds // 60}m"
    return f"{seconds // 3_600}h" if seconds < 3 * 86_400 else f"{seconds // 86_400}d"


def show(table: Table, catalog: CatalogName, as_json: AsJson = False) -> int:
    """Show the schema, partition specs, sort orders, refs and snapshots of a table, from its metadata document."""
    from rich.text import Text

    from icekeeper.report.terminal import print_rows
    from icekeeper.runtime import Runtime

    metadata = Runtime.open(catalog).catalog.load(table_name(table)).metadata
    document = {**about(table, catalog), **described(metadata)}
    console = answer(document, as_json=as_json)
    for title, rows in sections(document):
        console.print(Text(title, style="bold"))
        print_rows(console, [[Text(f"  {first}"), *map(Text, rest)] for first, *rest in rows], "  none")
    return EXIT_OK


def described(metadata: TableMetadata) -> dict[str, Any]:
    """The facts about a table in its metadata document, without its files (pure)."""
    orders = metadata.document.get("sort-orders") or ()
    return {
        "uuid": metadata.uuid,
        "location": metadata.location,
        "format_version": metadata.format_version,
        "updated_ms": metadata.last_updated_ms,
        "properties": dict(metadata.properties),
        "schema": dict(metadata.current_schema),
        "partition_specs": [dict(spec) for spec in metadata.specs.values()],
        "default_spec_id": metadata.default_spec_id,
        "sort_orders": [dict(order) for order in orders],
        "default_sort_order_id": metadata.default_sort_order_id,
        "refs": [
            {"name": name, "type": ref.type, "snapshot_id": ref.snapshot_id}
            for name, ref in sorted(metadata.refs.items())
        ],
        "snapshots": [_snapshot(snapshot) for snapshot in reversed(metadata.in_commit_order)],
    }


def _snapshot(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "snapshot_id": snapshot.snapshot_id,
        "timestamp_ms": snapshot.timestamp_ms,
        "operation": snapshot.operation,
        "summary": dict(snapshot.summary),
    }


_MOST_SNAPSHOTS = 20


def sections(document: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[Sequence[str]]]]:
    """Titles and rows for people, with at most 20 snapshots, the newest (pure)."""
    version, updated = document["format_version"], iso_utc(document["updated_ms"])
    yield (
        document["table"],
        [
            ("location", document["location"]),
            ("uuid", document["uuid"] or _NONE),
            ("format version", str(version)),
            ("updated", updated),
        ],
    )
    fields = document["schema"]["fields"]
    names = {field["id"]: field["name"] for field in fields}
    yield "schema", [(_number(field), field["name"], _type(field["type"]), _needed(field)) for field in fields]
    for kind, parts, chosen in (
        ("partition spec", document["partition_specs"], ("spec-id", document["default_spec_id"])),
        ("sort order", document["sort_orders"], ("order-id", document["default_sort_order_id"])),
    ):
        key, current = chosen
        for part in parts:
            rows = [
                (_term(field, names), field.get("direction", ""), field.get("null-order", ""))
                for field in part["fields"]
            ]
            yield f"{kind} {part[key]}{' (current)' if part[key] == current else ''}", rows
    yield "refs", [(ref["name"], ref["type"], str(ref["snapshot_id"])) for ref in document["refs"]]
    snapshots = document["snapshots"]
    more = f", the newest {_MOST_SNAPSHOTS}" if len(snapshots) > _MOST_SNAPSHOTS else ""
    yield (
        f"{counted(len(snapshots), 'snapshot')}{more}",
        [
            (
                iso_utc(snapshot["timestamp_ms"]),
                str(snapshot["snapshot_id"]),
                snapshot["operation"] or _NONE,
                _total(snapshot, "data file"),
                _total(snapshot, "delete file"),
            )
            for snapshot in snapshots[:_MOST_SNAPSHOTS]
        ],
    )


def _total(snapshot: Mapping[str, Any], what: str) -> str:
    """A total of the summary, as its writer left it."""
    total = snapshot["summary"].get(f"total-{what.replace(' ', '-')}s", _NONE)
    return f"{total} {what}{'' if total == '1' else 's'}"


def _number(field: Mapping[str, Any]) -> str:
    return str(field["id"])


def _needed(field: Mapping[str, Any]) -> str:
    return "required" if field.get("required") else ""


def _type(of: Any) -> str:
    """A primitive type by its name, a nested type by its kind and elements."""
    if not isinstance(of, dict):
        return str(of)
    if of["type"] == "struct":
        parts = [f"{field['name']}: {_type(field['type'])}" for field in of["fields"]]
        return f"struct<{', '.join(parts)}>"
    if of["type"] == "list":
        return f"list<{_type(of['element'])}>"
    return f"map<{_type(of['key'])}, {_type(of['value'])}>"


def _term(field: Mapping[str, Any], names: Mapping[int, str]) -> str:
    ids = field.get("source-ids") or [field.get("source-id")]
    columns = ", ".join(names.get(column, f"column {column}") for column in ids)
    transform = str(field["transform"])
    if transform == "identity":
        return columns
    head, bracket, width = transform.partition("[")
    return f"{head}({width.removesuffix(']')}, {columns})" if bracket else f"{transform}({columns})"
