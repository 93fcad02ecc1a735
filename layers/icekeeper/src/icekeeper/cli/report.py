"""``icekeeper report``: a page that shows the tables of a catalog, to open in a browser or to send to somebody."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icekeeper.cli.arguments import CatalogName, Settings, overrides
from icekeeper.cli.console import EXIT_OK, people
from icekeeper.errors import PolicyError

if TYPE_CHECKING:
    from icekeeper.report.page import Page, TableOnPage
    from icekeeper.runtime import Runtime
    from icekeeper.state.lake_stats import LakeStats

__all__ = ["report"]


def report(
    catalog: CatalogName,
    output: Annotated[Path, typer.Option("--output", metavar="FILE.html", help="the page; written anew if it exists")],
    settings: Settings = None,
) -> int:
    """Write a page of a catalog's tables: what needs work and why, sizes, warnings, the last passes.

    It looks at every table as detect does, and changes none.
    """
    from icekeeper.amounts import counted
    from icekeeper.report.page import render_page
    from icekeeper.runtime import Runtime

    page = _page(Runtime.open(catalog), overrides(settings, about="one detection"))
    _write(output, render_page(page))
    work = sum(bool(table.reasons) for table in page.tables)
    people(as_json=False).print(f"{output}: {counted(len(page.tables), 'table')}, {work} need work", soft_wrap=True)
    return EXIT_OK


def _page(runtime: Runtime, chosen: dict[str, str]) -> Page:
    from icekeeper.health.totals import lake_totals
    from icekeeper.report.page import Page

    found = runtime.detect(chosen)
    catalog = runtime.catalog
    lake = runtime.state.lake_stats.of_catalog(catalog.name, catalog.warehouse)
    known = {str(stats.identity.table): stats for stats in lake}
    proposed = {one.table: one for one in found.proposals}
    left = {one.table: one.reason for one in found.skipped}
    return Page(
        catalog.name,
        runtime.clock(),
        lake_totals(known.values()),
        [
            _table(
                runtime,
                name,
                known.get(name),
                reasons=proposed[name].reasons if name in proposed else (),
                priority=proposed[name].priority if name in proposed else 0.0,
                left_alone=left.get(name, ""),
            )
            for name in sorted({*known, *proposed, *left})
        ],
    )


def _table(
    runtime: Runtime,
    name: str,
    stats: LakeStats | None,
    *,
    reasons: tuple[str, ...],
    priority: float,
    left_alone: str,
) -> TableOnPage:
    from icekeeper.clock import iso_utc
    from icekeeper.report.page import TableOnPage

    if stats is None:
        return TableOnPage(name, reasons=reasons, priority=priority, left_alone=left_alone)
    passes = runtime.state.history(stats.identity, limit=1)
    last = "".join(f"{iso_utc(one.finished_ms)} {one.status}: {one.summary}" for one in passes)
    return TableOnPage(name, stats.counters, tuple(stats.warnings.values()), reasons, priority, left_alone, last)


def _write(output: Path, text: str) -> None:
    """Raises PolicyError when it cannot be written; then nothing remains of it."""
    from icekeeper.storage.local import write_whole

    if output.exists() and not output.is_file():  # a device or a pipe would be replaced by the page
        raise PolicyError(f"--output {output} cannot be written: it is no ordinary file; choose another file")
    try:
        output.parent.stat()  # a folder that is not there is a slip, and not to be made
        write_whole(str(output.absolute()), text.encode())
    except OSError as error:
        raise PolicyError(
            f"--output {output} cannot be written: {error.strerror or error}; choose another file"
        ) from None
