"""``icekeeper advise``: what to change about a table's design, with the numbers that carry it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icekeeper.cli.arguments import AsJson, CatalogName, Settings, Unsafe, overrides, table_name
from icekeeper.cli.console import EXIT_OK, people, print_failed, print_json
from icekeeper.errors import PolicyError
from icekeeper.text import counted

if TYPE_CHECKING:
    from icekeeper.advice.advise import Advice
    from icekeeper.catalogs.catalog import LoadedTable
    from icekeeper.policy import ResolvedPolicy

__all__ = ["advise"]


def advise(
    catalog: CatalogName,
    table: Annotated[
        str | None, typer.Argument(metavar="[NS.TABLE]", help="namespace and table; the last dot divides")
    ] = None,
    all_tables: Annotated[
        bool, typer.Option("--all", help="every table of the catalog, and what tables share")
    ] = False,
    settings: Settings = None,
    unsafe: Unsafe = False,
    as_json: AsJson = False,
) -> int:
    """Say what to change about a table, why, and how; reads manifests and no data, and changes nothing."""
    from icekeeper.advice.read_tables import advise_catalog, advise_table
    from icekeeper.policy import Layer, resolve
    from icekeeper.runtime import Runtime

    if (table is None) is not all_tables:
        raise PolicyError("name one table, or give --all for every table of the catalog")
    chosen = overrides(settings)
    resolve([Layer("--set", chosen)], unsafe=unsafe)  # a wrong --set is no fault of a table
    runtime = Runtime.open(catalog)

    def settings_of(loaded: LoadedTable) -> ResolvedPolicy:
        return runtime.policy(loaded, chosen, unsafe=unsafe)

    if table is not None:
        name = table_name(table)
        document = _document(catalog, str(name), advise_table(runtime.catalog, name, settings_of))
        if as_json:
            print_json({"table": str(name), "catalog": runtime.catalog.name, **document})
        _print([document], as_json=as_json)
        return EXIT_OK
    found, unread = advise_catalog(runtime.catalog, settings_of)
    tables = [_document(catalog, name, advice) for name, advice in sorted(found.items())]
    failed = [{"table": name, "status": "failed", "reason": why, "advice": []} for name, why in sorted(unread.items())]
    if as_json:
        status = "partial" if failed else "succeeded"
        every = [one for found_in in tables for one in found_in["advice"]]
        print_json({"catalog": runtime.catalog.name, "status": status, "advice": every, "tables": tables + failed})
    _print(tables, as_json=as_json)
    told = "; ".join(f"{name}: {why}" for name, why in sorted(unread.items()))
    return print_failed(f"{counted(len(unread), 'table')} could not be read: {told}") if unread else EXIT_OK


def _document(catalog: str, table: str, advice: Sequence[Advice]) -> dict[str, Any]:
    # What is to be typed as it stands here needs the catalog; SQL names it as its session does.
    catalog_option = f" --catalog {shlex.quote(catalog)}"
    return {
        "table": table,
        "status": "succeeded",
        "advice": [
            {
                "table": table,
                "kind": one.kind,
                "severity": "info",  # a table that needs a warning has it from health
                "reason": one.message,
                "numbers": dict(one.numbers),
                "gain": one.gain,
                "statement": one.statement + (catalog_option if one.statement.startswith("icekeeper ") else ""),
            }
            for one in advice
        ],
    }


def _print(tables: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    from rich.text import Text

    console = people(as_json=as_json)
    for table in tables:
        advice = table["advice"]
        verdict = Text("nothing to advise", style="green") if not advice else Text(f"{len(advice)} to consider")
        console.print(Text.assemble((table["table"], "bold"), ": ", verdict))
        for one in advice:
            console.print(Text.assemble("  ", (one["kind"], "yellow"), f": {one['reason']}"), soft_wrap=True)
            console.print(Text(f"    gain: {one['gain']}"), soft_wrap=True)
            console.print(Text(f"    do:   {one['statement']}"), soft_wrap=True)
