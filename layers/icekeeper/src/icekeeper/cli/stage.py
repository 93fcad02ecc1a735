"""``icekeeper stage``: record which files of a load await adoption, and how the load ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from icekeeper.cli.arguments import AsJson, CatalogName, Table, table_name
from icekeeper.cli.command_help import CommandGroup
from icekeeper.cli.console import EXIT_OK, about, answer
from icekeeper.errors import PolicyError
from icekeeper.machine.clock import iso_utc

if TYPE_CHECKING:
    from icekeeper.state.staging import StagedLoad

__all__ = ["stage_app"]

stage_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Loads whose files lie in the table and await a commit."
)

LoadName: TypeAlias = Annotated[str, typer.Option("--name", metavar="LOAD", help="of the load, unique per table")]


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
        list[str] | None, typer.Option("--prefix", metavar="PREFIX", help="a folder of this load alone; repeatable")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Record files that must not be deleted, because a commit is going to name them."""
    from icekeeper.administration.pins import stage_load
    from icekeeper.runtime import Runtime

    paths = [*(files or ()), *([] if file_list is None else _lines(file_list))]
    handle = Runtime.open(catalog).table(table_name(table))
    _tell(table, catalog, stage_load(handle, name, paths, prefixes or ()), as_json=as_json)
    return EXIT_OK


@stage_app.command("adopted")
def stage_adopted(table: Table, catalog: CatalogName, name: LoadName, as_json: AsJson = False) -> int:
    """Say that a commit names the files of a load."""
    from icekeeper.administration.pins import declare_load
    from icekeeper.runtime import Runtime
    from icekeeper.state.staging import LoadState

    handle = Runtime.open(catalog).table(table_name(table))
    _tell(table, catalog, declare_load(handle, name, LoadState.ADOPTED), as_json=as_json)
    return EXIT_OK


@stage_app.command("failed")
def stage_failed(table: Table, catalog: CatalogName, name: LoadName, as_json: AsJson = False) -> int:
    """Say that a load failed: its files are deleted after the grace period, unless something references them."""
    from icekeeper.administration.pins import declare_load
    from icekeeper.runtime import Runtime
    from icekeeper.state.staging import LoadState

    handle = Runtime.open(catalog).table(table_name(table))
    _tell(table, catalog, declare_load(handle, name, LoadState.FAILED), as_json=as_json)
    return EXIT_OK


@stage_app.command("list")
def stage_list(table: Table, catalog: CatalogName, as_json: AsJson = False) -> int:
    """Print the loads that are not settled, those of running and dead jobs too."""
    from icekeeper.administration.pins import list_loads
    from icekeeper.report.terminal import print_loads
    from icekeeper.runtime import Runtime

    loads = [_load_json(load) for load in list_loads(Runtime.open(catalog).table(table_name(table)))]
    console = answer({**about(table, catalog), "loads": loads}, as_json=as_json)
    print_loads(console, loads)
    return EXIT_OK


def _tell(table: str, catalog: str, load: StagedLoad, *, as_json: bool) -> None:
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
    # Not splitlines(): a path may hold other characters that it takes for the end of a line.
    return [line for line in text.replace("\r\n", "\n").split("\n") if line.strip()]
