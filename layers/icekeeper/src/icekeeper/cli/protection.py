"""Commands that protect tables and files.

``pause`` stops passes over tables, and ``resume`` lets them go on.  ``pin`` keeps a snapshot for a reader, ``stage``
keeps the files of a load that a commit will reference, and ``claims`` shows which other tables may have files in or
around the folders of a table.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from icekeeper.cli.arguments import AsJson, CatalogName, CommandGroup, Table, table_name, time_ms
from icekeeper.cli.console import EXIT_OK, about, answer
from icekeeper.cli.several import Shown, Tables, answer_each
from icekeeper.errors import PolicyError
from icekeeper.machine.clock import iso_utc

if TYPE_CHECKING:
    from rich.console import Console

    from icekeeper.model import TableName
    from icekeeper.pass_context.table_handle import TableHandle
    from icekeeper.state.claims import TableClaims
    from icekeeper.state.staging import StagedLoad
    from icekeeper.state.store import Pin


def _opened(table: str, catalog: str) -> TableHandle:
    from icekeeper.runtime import Runtime

    return Runtime.open(catalog).table(table_name(table))


claims_app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Other tables that were seen to have files in or around a table's folders.",
)


@claims_app.command("list")
def claims_list(table: Table, catalog: CatalogName, as_json: AsJson = False) -> int:
    """Print which tables, of any catalog that shares the state, may need files in this table's folders."""
    from icekeeper.deletion.table_claims import claims_near
    from icekeeper.report.terminal import print_claims

    found = [claims_json(claims) for claims in claims_near(_opened(table, catalog))]
    console = answer({**about(table, catalog), "claims": found}, as_json=as_json)
    print_claims(console, found)
    return EXIT_OK


@claims_app.command("forget")
def claims_forget(
    table: Table,
    catalog: CatalogName,
    by_catalog: Annotated[str, typer.Option("--by-catalog", metavar="C", help="the catalog that is gone, as listed")],
    by_table: Annotated[str, typer.Option("--by-table", metavar="NS.TABLE", help="its table, as listed")],
    by_warehouse: Annotated[
        str | None, typer.Option("--by-warehouse", metavar="W", help="its warehouse, if several are listed")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="even if that catalog is configured here")] = False,
    as_json: AsJson = False,
) -> int:
    """Forget a table that is gone for good with its catalog: its files may be deleted; the journal records by whom."""
    from icekeeper.catalogs.load import served_catalog
    from icekeeper.deletion.table_claims import forget_claims

    forgotten = forget_claims(
        _opened(table, catalog), by_catalog, table_name(by_table), by_warehouse, served_catalog, force=force
    )
    sentence = f"{table}: {forgotten.table} of catalog {forgotten.catalog} is forgotten"
    console = answer({**about(table, catalog), "forgotten": [claims_json(forgotten)]}, as_json=as_json)
    console.print(sentence, soft_wrap=True)
    return EXIT_OK


@claims_app.command("exclude")
def claims_exclude(table: Table, catalog: CatalogName, as_json: AsJson = False) -> int:
    """Declare that an unreadable table needs no files of other tables: until it can be read, it blocks no deletion."""
    from icekeeper.deletion.table_claims import exclude_entry
    from icekeeper.model import TableName
    from icekeeper.runtime import Runtime

    runtime = Runtime.open(catalog)
    excluded = exclude_entry(runtime.catalog, TableName.recorded(table), runtime.state)
    console = answer({**about(table, catalog), "excluded": [claims_json(excluded)]}, as_json=as_json)
    console.print(f"{table} of catalog {excluded.catalog} is excluded until it can be read", soft_wrap=True)
    return EXIT_OK


def claims_json(claims: TableClaims) -> dict[str, Any]:
    """One entry as the JSON documents show it; folders are normalised."""
    return {
        "catalog": claims.catalog.name,
        "warehouse": claims.catalog.warehouse,
        "table": str(claims.table),
        "uuid": claims.uuid,
        "location": claims.location,
        "folders": sorted(claims.folders),
    }


pin_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Snapshots that readers need: a pinned snapshot does not expire."
)


@pin_app.command("add")
def pin_add(
    table: Table,
    catalog: CatalogName,
    snapshot: Annotated[
        str, typer.Option("--snapshot", metavar="ID|current", help="keep this snapshot and all newer ones")
    ],
    ttl: Annotated[str, typer.Option("--ttl", metavar="TIME", help="how long to keep it: 90s, 30m, 6h or 7d")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="N", help="extends the pin of this name; default: a new name")
    ] = None,
    tag: Annotated[bool, typer.Option("--tag", help="add an Iceberg tag of that name, for other engines")] = False,
    as_json: AsJson = False,
) -> int:
    """Pin a snapshot for a limited time."""
    from icekeeper.api import Icekeeper
    from icekeeper.report.terminal import print_pins, print_warnings

    length = timedelta(milliseconds=time_ms(ttl, "--ttl"))
    lake = Icekeeper(catalog)
    pin = pin_json(lake.pin(table, length, snapshot=snapshot, name=name, tag=tag))
    warnings = lake.pin_warnings(table)
    warned = {"warnings": list(warnings)} if warnings else {}
    console = answer({**about(table, catalog), "pin": pin, **warned}, as_json=as_json)
    print_pins(console, [pin])
    print_warnings(console, warnings)
    return EXIT_OK


@pin_app.command("list")
def pin_list(table: Table, catalog: CatalogName, as_json: AsJson = False) -> int:
    """Print the pins in force, including those of running jobs."""
    from icekeeper.api import Icekeeper
    from icekeeper.report.terminal import print_pins

    pins = [pin_json(pin) for pin in Icekeeper(catalog).pin_list(table)]
    console = answer({**about(table, catalog), "pins": pins}, as_json=as_json)
    print_pins(console, pins)
    return EXIT_OK


@pin_app.command("remove")
def pin_remove(
    table: Table,
    catalog: CatalogName,
    name: Annotated[str, typer.Option("--name", metavar="N", help="name of the pin")],
    as_json: AsJson = False,
) -> int:
    """Remove a pin, and the tag that was written for it."""
    from icekeeper.api import Icekeeper

    removed = Icekeeper(catalog).pin_remove(table, name)
    console = answer({**about(table, catalog), "removed": removed.name}, as_json=as_json)
    console.print(f"{table}: pin {removed.name} removed", soft_wrap=True)
    return EXIT_OK


def pin_json(pin: Pin) -> dict[str, Any]:
    """One pin as the JSON documents show it."""
    return {
        "name": pin.name,
        "snapshot_id": pin.snapshot_id,
        "metadata_location": pin.metadata_location,
        "expires_ms": pin.expires_ms,
        "expires": iso_utc(pin.expires_ms),
        "kind": pin.kind.value,
        "tag": pin.tag,
    }


stage_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Loads whose files are in the table's folders and await a commit."
)

LoadName: TypeAlias = Annotated[str, typer.Option("--name", metavar="LOAD", help="name of the load, unique per table")]


@stage_app.command("add")
def stage_add(
    table: Table,
    catalog: CatalogName,
    name: LoadName,
    files: Annotated[
        list[str] | None, typer.Option("--file", metavar="PATH", help="a file as the commit will name it; repeatable")
    ] = None,
    file_list: Annotated[
        Path | None, typer.Option("--file-list", metavar="FILE", help="a text file with one path per line")
    ] = None,
    prefixes: Annotated[
        list[str] | None,
        typer.Option("--prefix", metavar="PREFIX", help="a folder that only this load uses; repeatable"),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Record files that must not be deleted, because a commit will reference them."""
    from icekeeper.api import Icekeeper

    paths = [*(files or ()), *([] if file_list is None else _lines(file_list))]
    load = Icekeeper(catalog).stage(table, name, files=paths, prefixes=prefixes or ())
    _print_load(table, catalog, load, as_json=as_json)
    return EXIT_OK


@stage_app.command("adopted")
def stage_adopted(table: Table, catalog: CatalogName, name: LoadName, as_json: AsJson = False) -> int:
    """Record that a commit references the files of a load."""
    from icekeeper.api import Icekeeper

    _print_load(table, catalog, Icekeeper(catalog).stage_adopted(table, name), as_json=as_json)
    return EXIT_OK


@stage_app.command("failed")
def stage_failed(table: Table, catalog: CatalogName, name: LoadName, as_json: AsJson = False) -> int:
    """Record that a load failed: its files are deleted after the grace period, unless something references them."""
    from icekeeper.api import Icekeeper

    _print_load(table, catalog, Icekeeper(catalog).stage_failed(table, name), as_json=as_json)
    return EXIT_OK


@stage_app.command("list")
def stage_list(table: Table, catalog: CatalogName, as_json: AsJson = False) -> int:
    """Print the recorded loads, including those of running and dead jobs."""
    from icekeeper.api import Icekeeper
    from icekeeper.report.terminal import print_loads

    loads = [_load_json(load) for load in Icekeeper(catalog).stage_list(table)]
    console = answer({**about(table, catalog), "loads": loads}, as_json=as_json)
    print_loads(console, loads)
    return EXIT_OK


def _print_load(table: str, catalog: str, load: StagedLoad, *, as_json: bool) -> None:
    from icekeeper.report.terminal import print_loads

    document = _load_json(load)
    console = answer({**about(table, catalog), "load": document}, as_json=as_json)
    print_loads(console, [document])


def _load_json(load: StagedLoad) -> dict[str, Any]:
    return {
        "name": load.name,
        "origin": load.origin.value,
        "state": load.state.value,
        "files": load.file_count,
        "prefixes": list(load.prefixes),
        "changed_ms": load.changed_ms,
        "changed": iso_utc(load.changed_ms),
    }


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise PolicyError(f"the list of files {path} cannot be read: {reason}") from error
    # Not splitlines(): it also splits at characters that a path may contain.
    return [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]


def pause(
    catalog: CatalogName,
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="6h or 3d from now, or 2026-12-01T06:00:00Z")],
    tables: Tables = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="the reason, for the journal")] = "",
    as_json: AsJson = False,
) -> int:
    """Stop all passes over tables until a time, however they are started; icekeeper resume ends the pause earlier."""
    from icekeeper.runtime import Runtime

    runtime = Runtime.open(catalog)
    until_ms = _until_ms(until, runtime.clock())

    def paused(name: TableName) -> Shown:
        ends = runtime.pause(name, until_ms, reason)
        document = {**about(str(name), catalog), "paused_until": ends}
        return Shown(document, _sentence(f"{name} is paused until {ends}; icekeeper resume {name} ends it earlier"))

    return answer_each(runtime.catalog, tables, paused, as_json=as_json)


def resume(catalog: CatalogName, tables: Tables = None, as_json: AsJson = False) -> int:
    """End the pause of tables now."""
    from icekeeper.runtime import Runtime

    runtime = Runtime.open(catalog)

    def resumed(name: TableName) -> Shown:
        ended = runtime.resume(name)
        what = "was not paused" if ended is None else f"is maintained again; it was paused until {ended}"
        return Shown({**about(str(name), catalog), "was_paused_until": ended}, _sentence(f"{name} {what}"))

    return answer_each(runtime.catalog, tables, resumed, as_json=as_json)


def _sentence(sentence: str) -> Callable[[Console], object]:
    return lambda console: console.print(sentence, soft_wrap=True)


def _until_ms(text: str, now_ms: int) -> int:
    """Epoch milliseconds of a duration from now, such as ``6h``, or of a time with its zone.

    Raises:
        PolicyError: the text is neither.
    """
    with suppress(ValueError):
        moment = datetime.fromisoformat(text.strip())
        if moment.tzinfo is not None:
            return int(moment.timestamp() * 1000)
    try:
        return now_ms + time_ms(text, "--until")
    except PolicyError:
        raise PolicyError(
            f"--until takes a duration like 6h or 3d, or a time with its zone like 2026-12-01T06:00:00Z, not '{text}'"
        ) from None
