"""Commands that report on tables: ``report``, ``health`` and ``advise``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icekeeper.cli.arguments import AsJson, CatalogName, Catalogs, Settings, Unsafe, overrides, table_name
from icekeeper.cli.console import EXIT_OK, about, people, print_failed, print_json, write_output
from icekeeper.cli.several import Shown, Tables, answer_each
from icekeeper.errors import PolicyError
from icekeeper.text import counted

if TYPE_CHECKING:
    from icekeeper.advice.advise import Advice
    from icekeeper.catalogs.catalog import LoadedTable
    from icekeeper.model import CatalogId, TableName
    from icekeeper.policy import ResolvedPolicy
    from icekeeper.state.store import StateStore


def advise(
    catalog: CatalogName,
    table: Annotated[
        str | None, typer.Argument(metavar="[NS.TABLE]", help="namespace and table, divided at the last dot")
    ] = None,
    all_tables: Annotated[
        bool, typer.Option("--all", help="every table of the catalog, and what tables share")
    ] = False,
    settings: Settings = None,
    unsafe: Unsafe = False,
    as_json: AsJson = False,
) -> int:
    """Advise changes to a table, with reasons and statements; reads manifests but no data, and changes nothing."""
    from icekeeper.advice.read_tables import advise_catalog, advise_table
    from icekeeper.policy import Layer, resolve
    from icekeeper.policy.layers import OVERRIDE_SOURCE
    from icekeeper.runtime import Runtime

    if (table is None) is not all_tables:
        raise PolicyError("name one table, or give --all for every table of the catalog")
    chosen = overrides(settings)
    resolve([Layer(OVERRIDE_SOURCE, chosen)], unsafe=unsafe)  # reports a wrong --set once, not for every table
    runtime = Runtime.open(catalog)

    def settings_of(loaded: LoadedTable) -> ResolvedPolicy:
        return runtime.policy(loaded, chosen, unsafe=unsafe)

    if table is not None:
        name = table_name(table)
        document = _document(catalog, str(name), advise_table(runtime.catalog, name, settings_of))
        if as_json:
            print_json({"table": str(name), "catalog": runtime.catalog.id.name, **document})
        _print([document], as_json=as_json)
        return EXIT_OK
    found, unread = advise_catalog(runtime.catalog, settings_of)
    tables = [_document(catalog, name, advice) for name, advice in sorted(found.items())]
    failed = [{"table": name, "status": "failed", "reason": why, "advice": []} for name, why in sorted(unread.items())]
    if as_json:
        status = "partial" if failed else "succeeded"
        every = [advice for found_in in tables for advice in found_in["advice"]]
        print_json({"catalog": runtime.catalog.id.name, "status": status, "advice": every, "tables": tables + failed})
    _print(tables, as_json=as_json)
    sentence = "; ".join(f"{name}: {why}" for name, why in sorted(unread.items()))
    return print_failed(f"{counted(len(unread), 'table')} could not be read: {sentence}") if unread else EXIT_OK


def _document(catalog: str, table: str, advice: Sequence[Advice]) -> dict[str, Any]:
    # With its catalog, a command of icekeeper can be pasted and run; a SQL session has a catalog already.
    catalog_option = f" --catalog {shlex.quote(catalog)}"
    return {
        "table": table,
        "status": "succeeded",
        "advice": [
            {
                "table": table,
                "kind": item.kind,
                "severity": "info",  # warnings come from the command health
                "reason": item.message,
                "numbers": dict(item.numbers),
                "gain": item.gain,
                "statement": item.statement + (catalog_option if item.statement.startswith("icekeeper ") else ""),
            }
            for item in advice
        ],
    }


def _print(tables: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    from rich.text import Text

    console = people(as_json=as_json)
    for table in tables:
        advice = table["advice"]
        verdict = Text("nothing to advise", style="green") if not advice else Text(f"{len(advice)} to consider")
        console.print(Text.assemble((table["table"], "bold"), ": ", verdict))
        for item in advice:
            console.print(Text.assemble("  ", (item["kind"], "yellow"), f": {item['reason']}"), soft_wrap=True)
            console.print(Text(f"    gain: {item['gain']}"), soft_wrap=True)
            console.print(Text(f"    do:   {item['statement']}"), soft_wrap=True)


def health(
    catalog: CatalogName,
    tables: Tables = None,
    settings: Settings = None,
    unsafe: Unsafe = False,
    as_json: AsJson = False,
) -> int:
    """Report the health of tables, maintained or not; reads a few of their files, and changes nothing."""
    from icekeeper.report.terminal import print_health
    from icekeeper.runtime import Runtime

    chosen, runtime = overrides(settings), Runtime.open(catalog)

    def health_of(name: TableName) -> Shown:
        stats = runtime.afresh.health(name, chosen, unsafe=unsafe)
        document = {
            **about(str(stats.identity.table), stats.identity.catalog.name),
            "snapshot_id": stats.snapshot_id,
            "observed_ms": stats.observed_ms,
            "counters": dict(stats.counters),
            "warnings": [{"kind": kind, "message": message} for kind, message in stats.warnings.items()],
            "policy": dict(stats.policy),
            "verified_ms": stats.verified_ms,
        }
        return Shown(document, lambda console: print_health(console, document))

    return answer_each(runtime.catalog, tables, health_of, as_json=as_json)


def report(
    catalogs: Catalogs,
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE.html", help="the page; an existing file is replaced")
    ],
    fresh: Annotated[
        str | None,
        typer.Option(
            "--fresh", metavar="PATTERN", help="first scan these tables, such as shop.* or *, and read their manifests"
        ),
    ] = None,
) -> int:
    """Write a page from the records of scans and passes: problems, results, and every table in detail.

    It reads only the state, and changes no table.  With --fresh, it first scans the tables that match the pattern;
    a table that cannot be read is shown on the page, and the exit code is 1.
    """
    from icekeeper.health.table_state import TROUBLED, TableState
    from icekeeper.machine.clock import system_clock
    from icekeeper.machine.resources import variables_set
    from icekeeper.report.page import render_page
    from icekeeper.state.open import open_state

    names, unread = list(dict.fromkeys(catalogs)), dict[str, str]()
    if fresh is not None:
        from icekeeper.runtime import Runtime

        for name in names:
            unread |= Runtime.open(name).afresh.scan(fresh)
    state, now_ms = open_state(variables_set(os.environ)), system_clock()
    documents = [recorded_catalog(state, name, now_ms) for name in names]
    write_output("--output", output, render_page(documents, now_ms))
    tables = [table for document in documents for table in document["tables"]]
    trouble, work = (sum(table["state"] in group for table in tables) for group in (TROUBLED, (TableState.WORK,)))
    sentence = f"{counted(len(tables), 'table')}, {trouble} in trouble, {work} with work due"
    is_printed = str(output) == "-"
    people(as_json=is_printed).print(sentence if is_printed else f"{output}: {sentence}", soft_wrap=True)
    causes = "; ".join(f"{name}: {why}" for name, why in sorted(unread.items()))
    return print_failed(f"{counted(len(unread), 'table')} could not be read: {causes}") if unread else EXIT_OK


def recorded_catalog(state: StateStore, name: str, now_ms: int) -> dict[str, Any]:
    """The document of a catalog, from what scans and passes recorded (:func:`.catalog_document`).

    Raises:
        PolicyError: the catalog was never scanned, and is not configured.
        StorageError: the state cannot be read, or knows no scan of the catalog.
    """
    from icekeeper.report.page import catalog_document, recorded_facts

    return catalog_document(recorded_facts(state, _scanned(state, name), now_ms), now_ms)


def _scanned(state: StateStore, name: str) -> CatalogId:
    """The id of a catalog by its last scan; a catalog that was never scanned is opened.

    Raises:
        PolicyError: the catalog was never scanned, and is not configured.
    """
    scans = [scan for scan in state.scans.all() if scan.catalog.name == name]
    if scans:
        return max(scans, key=lambda scan: scan.scanned_ms).catalog
    from icekeeper.catalogs.load import open_catalog

    return open_catalog(name).id
