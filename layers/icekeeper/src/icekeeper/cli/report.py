"""``icekeeper report``: a page that shows the tables of a catalog, to open in a browser or to send to somebody."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icekeeper.cli.arguments import CatalogName, Settings, overrides
from icekeeper.cli.console import EXIT_OK, people, print_failed
from icekeeper.errors import PolicyError

if TYPE_CHECKING:
    from icekeeper.detection.proposal import Proposal, Skip
    from icekeeper.report.page import Page, TableOnPage
    from icekeeper.runtime import Runtime
    from icekeeper.state.lake_stats import LakeStats

__all__ = ["report"]

# Passes among which one is looked for that has swept the table.
_PASSES = 30
_LEFT = "remove_orphans.bytes_left"


def report(
    catalog: CatalogName,
    output: Annotated[Path, typer.Option("--output", metavar="FILE.html", help="the page; written anew if it exists")],
    settings: Settings = None,
) -> int:
    """Write a page of a catalog's tables: what needs work and why, sizes, warnings, the last passes.

    It looks at every table as detect does, and changes none.  Tables that cannot be read are on the page, too; the
    command then ends as a failed one.
    """
    from icekeeper.report.page import render_page
    from icekeeper.runtime import Runtime
    from icekeeper.text import counted

    page = _page(Runtime.open(catalog), overrides(settings, about="one detection"))
    _write(output, render_page(page))
    work = sum(bool(table.reasons) for table in page.tables)
    told = f"{output}: {counted(len(page.tables), 'table')}, {work} {'needs' if work == 1 else 'need'} work"
    people(as_json=False).print(told, soft_wrap=True)
    unread = [table.name for table in page.tables if table.is_unread]
    return print_failed(f"{counted(len(unread), 'table')} cannot be read: {', '.join(unread)}") if unread else EXIT_OK


def _page(runtime: Runtime, chosen: dict[str, str]) -> Page:
    from icekeeper.health.totals import lake_totals
    from icekeeper.report.page import ORPHANS, Page

    # The page shows every table that needs work, not only as many as one scan proposes.
    found = runtime.detect({"max_jobs_per_detection": str(10**9), **chosen})
    catalog = runtime.catalog
    lake = runtime.state.lake_stats.of_catalog(catalog.name, catalog.warehouse)
    known = {str(stats.identity.table): stats for stats in lake}
    proposed = {one.table: one for one in found.proposals}
    left = {one.table: one for one in found.skipped}
    tables = [
        _table(runtime, name, known.get(name), proposed.get(name), left.get(name))
        for name in sorted({*known, *proposed, *left})
    ]
    orphans = [table.counters[ORPHANS] for table in tables if ORPHANS in table.counters]
    totals = {**lake_totals(known.values()), **({ORPHANS: sum(orphans)} if orphans else {})}
    return Page(catalog.name, runtime.clock(), totals, tables)


def _table(
    runtime: Runtime, name: str, stats: LakeStats | None, proposal: Proposal | None, skip: Skip | None
) -> TableOnPage:
    from icekeeper.report.page import ORPHANS, LastPass, TableOnPage

    passes = runtime.state.history(stats.identity, limit=_PASSES) if stats is not None else ()
    left = next((one.metrics[_LEFT] for one in passes if _LEFT in one.metrics), None)
    orphans = {} if left is None else {ORPHANS: left}
    last = passes[:1]
    return TableOnPage(
        name,
        counters={} if stats is None else {**stats.counters, **orphans},
        warnings=() if stats is None else tuple(stats.warnings.values()),
        reasons=() if proposal is None else proposal.reasons,
        priority=0.0 if proposal is None else proposal.priority,
        left_alone="" if skip is None else skip.reason,
        is_unread=skip is not None and skip.is_error,
        last_pass=LastPass(last[0].finished_ms, last[0].status, last[0].summary) if last else None,
    )


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
