"""``icekeeper erased``: whether any object of a table still stores some rows."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icekeeper.cli.arguments import AsJson, CatalogName, Engine, Table, table_name
from icekeeper.cli.console import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_UNKNOWN,
    engine_and_progress,
    people,
    print_error,
    print_failed,
    print_json,
)
from icekeeper.engines.engine import EngineName
from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from icekeeper.erasure.row_filter import Wanted

_MOST_OBJECTS = 3


def erased(
    table: Table,
    catalog: CatalogName,
    where: Annotated[
        str | None, typer.Option("--where", metavar="FILTER", help="the rows, as in the policy key where: user_id = 5")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys", metavar="FILE", help="the rows, as keys: a column of CSV below its name, or of a .parquet file"
        ),
    ] = None,
    read_all: Annotated[
        bool, typer.Option("--read-all", help="read every row; believe no statistics in the footers of files")
    ] = False,
    engine: Engine = EngineName.AUTO,
    as_json: AsJson = False,
) -> int:
    """Prove that rows are gone from every object of a table, or say where they are still stored; changes nothing.

    Exit codes: 0 gone, 1 present, 2 wrong call, 4 unknown: an object could not be read or listed.
    """
    from icekeeper.runtime import Runtime

    wanted, name = _wanted(where, keys), table_name(table)
    runtime = Runtime.open(catalog)
    try:
        with engine_and_progress(engine, as_json=as_json) as (started, progress):
            document = runtime.erased(name, wanted, started, read_all=read_all, progress=progress)
    except PolicyError:
        raise
    except MaintenanceError as error:
        print_error(type(error).__name__, str(error), as_json=as_json, page=error.page)
        return EXIT_UNKNOWN
    if as_json:
        print_json(document)
    _print(people(as_json=as_json), document)
    if document["answer"] == "gone":
        return EXIT_OK
    print_failed(f"{name}: {document['statement']}")
    return EXIT_FAILED if document["answer"] == "present" else EXIT_UNKNOWN


def _wanted(where: str | None, file: Path | None) -> Wanted:
    """What the options of a call say.

    A file whose name ends in ``.parquet`` is Parquet; any other file is CSV with a header.  Its only column has the
    name of a column of the table, and each row is a key.

    Raises:
        PolicyError: neither or both are given, or the file cannot be read or has another form.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from icekeeper.erasure.row_filter import Wanted

    if (where is None) == (file is None):
        raise PolicyError("say what must be gone with --where or with --keys")
    if file is None:
        return Wanted(where)
    try:
        data = file.read_bytes()
        if file.suffix == ".parquet":
            ((column, keys),) = pq.read_table(pa.BufferReader(data)).to_pydict().items()
        else:
            (column,), *lines = [line for line in csv.reader(data.decode().splitlines()) if line]
            keys = [key for (key,) in lines]
    except (OSError, pa.ArrowException, ValueError) as error:
        raise PolicyError(f"--keys: {file} is not a file with one column of keys and its name: {error}") from None
    if not keys or None in keys:
        raise PolicyError(f"--keys: {file} has no keys, or a row without a key")
    return Wanted(None, column, tuple(map(str, keys)), hashlib.sha256(data).hexdigest())


def _print(console: Console, document: Mapping[str, Any]) -> None:
    """Print a certificate for people: each place once, with its day and the commands that are faster."""
    from rich.text import Text

    style = {"gone": "green", "present": "red", "unknown": "yellow"}[document["answer"]]
    console.print(Text.assemble((document["table"], "bold"), ": ", (document["answer"], style)), soft_wrap=True)
    for place in document["places"]:
        held = " ".join(part for part in (place["holder"], place["name"]) if part)
        rows = f"{counted(place['rows'], 'row')} in " if place["rows"] else ""
        day = f"gone on {place['gone_on']} by the policy" if place["gone_on"] else "the policy sets no day"
        line = f": {place['what']}: {rows}{counted(len(place['objects']), 'object')}; {day}"
        console.print(Text.assemble("  ", (held, "bold"), line), soft_wrap=True)
        for path in place["objects"][:_MOST_OBJECTS]:
            console.print(Text(f"    {path}", style="dim"), soft_wrap=True)
        if len(place["objects"]) > _MOST_OBJECTS:
            console.print(Text(f"    and {len(place['objects']) - _MOST_OBJECTS} more", style="dim"))
    if document["sooner"]:
        console.print(Text("sooner, in this order; then call again:"))
    for step in document["sooner"]:
        console.print(Text(f"  {step}"), soft_wrap=True)
    for found in document["unknown"]:
        console.print(Text.assemble("  ", ("unknown", "yellow"), f": {found['reason']}"), soft_wrap=True)
    if document["moved"]:
        console.print(Text(f"the table moved {document['moved']} times meanwhile; what was new was looked at, too"))
    read, excluded = document["rows_read"], document["rows_excluded"]
    looked = f"looked at {counted(len(document['objects']), 'object')} and {counted(read, 'row')}"
    console.print(Text(f"{looked}; footers exclude {counted(excluded, 'row')}; as of {document['at']}"), soft_wrap=True)
    console.print(Text(f"not covered: {'; '.join(document['not_covered'])}"), soft_wrap=True)
