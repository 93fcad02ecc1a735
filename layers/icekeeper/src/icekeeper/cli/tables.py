"""``icekeeper list``: the tables of catalogs, as scans saw them; ``icekeeper show``: the metadata of a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from icekeeper.cli.arguments import AsJson, CatalogName, Catalogs, Table, table_name
from icekeeper.cli.console import EXIT_OK, about, answer
from icekeeper.cli.reports import recorded_catalog
from icekeeper.machine.clock import iso_utc, system_clock
from icekeeper.text import age_text, size_text

if TYPE_CHECKING:
    from icekeeper.metadata.document import Snapshot, TableMetadata


def _count(number: float) -> str:
    return f"{number:,.0f}"


_COLUMNS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "data files": ("lake_data_files", _count),
    "average": ("lake_average_file_bytes", size_text),
    "live": ("lake_bytes", size_text),
    "history": ("lake_history_bytes", size_text),
    "orphans": ("lake_orphan_bytes", size_text),
    "delete files": ("lake_delete_files", _count),
    "snapshots": ("lake_snapshots", _count),
}
_NONE = "–"
_STYLES = {"work": "yellow", "paused": "dim", "well": "green"}


def list_tables(
    catalogs: Catalogs,
    as_json: AsJson = False,
) -> int:
    """List tables with their state and sizes, most urgent first, as scans, passes and verify recorded them."""
    from rich.text import Text

    from icekeeper.health.table_state import TROUBLED, TableState, verified_text
    from icekeeper.machine.resources import variables_set
    from icekeeper.report.terminal import print_rows
    from icekeeper.state.open import open_state

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
    ]
    blockers = list(dict.fromkeys(document["blocker"] for document in documents if "blocker" in document))
    console = answer({"status": "succeeded", "blockers": blockers, "tables": tables}, as_json=as_json)
    for blocker in blockers:
        console.print(Text(blocker, style="red"), soft_wrap=True)

    def why(table: Mapping[str, Any]) -> str:
        if table["state"] in TROUBLED or table["state"] == TableState.WORK:
            return table.get("trouble") or "; ".join(table["reasons"])
        verified = verified_text(table["verified_ms"], now_ms)
        return "; ".join(filter(None, (table.get("left_alone"), verified)))

    heading = [Text(word, style="dim") for word in ("table", "state", *_COLUMNS, "age", "why")]
    rows = [
        [
            Text(table["name"] if len(documents) == 1 else f"{table['catalog']} {table['name']}"),
            Text(TableState(table["state"]).heading, style=_STYLES.get(table["state"], "red")),
            *(
                Text(_NONE if key not in table["counters"] else shown(table["counters"][key]))
                for key, shown in _COLUMNS.values()
            ),
            Text(age_text(table["age_seconds"] * 1000)),
            Text(why(table)),
        ]
        for table in tables
    ]
    print_rows(console, [heading, *rows] if rows else [], "the catalog has no table")
    return EXIT_OK


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
        f"{len(snapshots)} snapshots{more}",
        [
            (
                iso_utc(snapshot["timestamp_ms"]),
                str(snapshot["snapshot_id"]),
                snapshot["operation"] or _NONE,
                f"{snapshot['summary'].get('total-data-files', _NONE)} data files",
                f"{snapshot['summary'].get('total-delete-files', _NONE)} delete files",
            )
            for snapshot in snapshots[:_MOST_SNAPSHOTS]
        ],
    )


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
