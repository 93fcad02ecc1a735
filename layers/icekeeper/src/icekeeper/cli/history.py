"""``icekeeper history``: the passes over a table, from the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from icekeeper.cli.arguments import AsJson, CatalogName, Table, table_name
from icekeeper.cli.console import EXIT_OK, about, answer

if TYPE_CHECKING:
    from icekeeper.state.store import PassRecord

__all__ = ["history"]


def history(
    table: Table,
    catalog: CatalogName,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="how many passes, the newest first")] = 20,
    as_json: AsJson = False,
) -> int:
    """Print the newest passes that changed, found or refused something, from the journal."""
    from icekeeper.catalogs.catalog import identity_of
    from icekeeper.report.terminal import print_passes
    from icekeeper.runtime import Runtime

    handle = Runtime.open(catalog).table(table_name(table))
    identity = identity_of(handle.catalog, handle.load())
    passes = [pass_json(record) for record in handle.state.history(identity, limit=limit)]
    console = answer({**about(table, catalog), "passes": passes}, as_json=as_json)
    print_passes(console, passes)
    return EXIT_OK


def pass_json(record: PassRecord) -> dict[str, Any]:
    """One pass as the document shows it; times in epoch milliseconds."""
    return {
        "run_id": record.run_id,
        "started_ms": record.started_ms,
        "finished_ms": record.finished_ms,
        "duration_ms": record.finished_ms - record.started_ms,
        "status": record.status,
        "summary": record.summary,
        "engine": record.engine,
        "metrics": dict(record.metrics),
    }
