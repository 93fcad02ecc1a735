"""``icekeeper rollback``: set a branch back to a snapshot all of whose files exist."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icekeeper.cli.arguments import AsJson, CatalogName, Table, table_name
from icekeeper.cli.console import EXIT_OK, about, answer
from icekeeper.cli.several import ask

if TYPE_CHECKING:
    from rich.console import Console

    from icekeeper.repair.rollback import Rollback


def rollback(
    table: Table,
    catalog: CatalogName,
    to: Annotated[str, typer.Option("--to", metavar="SNAPSHOT", help="the id of a snapshot, or a tag or branch")],
    branch: Annotated[
        str | None, typer.Option("--branch", metavar="NAME", help="the branch to set; by default the policy's")
    ] = None,
    not_ancestor: Annotated[
        bool,
        typer.Option(
            "--not-ancestor",
            help="also a snapshot that is no ancestor of the branch's head, as set_current_snapshot of Iceberg does;"
            " undoes a rollback",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would change, and change nothing")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask; needed without a terminal")] = False,
    as_json: AsJson = False,
) -> int:
    """Set a branch back to a snapshot, once every manifest and file of it is found.

    No row or file is deleted: the snapshots that leave the branch stay until they expire, and a tag keeps the old head
    for 30 days where its metadata can be read.
    """
    from icekeeper.model import Nothing
    from icekeeper.runtime import Runtime

    def agree(plan: Rollback) -> None:
        ask(f"{table}: {plan.sentence}", partial(_show, document=plan.to_json()))

    runtime = Runtime.open(catalog)
    found = runtime.rollback(
        table_name(table), to, branch=branch, not_ancestor=not_ancestor, dry_run=dry_run, agree=None if yes else agree
    )
    if isinstance(found, Nothing):
        outcome, what, facts = "nothing", found.reason, {}
    else:
        outcome, verb = ("planned", "would set") if dry_run else ("done", "set")
        what, facts = f"{verb} {found.sentence}", found.to_json()
    document = {**about(table, catalog), "dry_run": dry_run, "outcome": outcome, "summary": what, **facts}
    console = answer(document, as_json=as_json)
    console.print(f"{table}: {what}", soft_wrap=True)
    if facts:
        if yes or dry_run:  # else it was shown before the question
            _show(console, document)
        _print_advice(console, document, catalog)
    return EXIT_OK


def _show(console: Console, document: Mapping[str, Any]) -> None:
    from rich.text import Text

    from icekeeper.report.terminal import print_rows

    for key, word in (("leaving", "leaves"), ("returning", "joins")):
        rows = [
            [
                Text(f"  {word}"),
                Text(str(snapshot["snapshot_id"])),
                Text(snapshot["time"]),
                Text(snapshot["operation"] or "–"),
                Text(f"{_count(snapshot['added_rows'])} rows added, {_count(snapshot['deleted_rows'])} deleted"),
            ]
            for snapshot in document[key]
        ]
        if rows:
            print_rows(console, rows)
    for problem in document["problems"]:
        console.print(f"  the snapshot has {problem['kind']} {problem['path']}: {problem['detail']}", soft_wrap=True)


def _print_advice(console: Console, document: Mapping[str, Any], catalog: str) -> None:
    """Print what keeps the old head, or why nothing does."""
    table, head = document["table"], document["from_snapshot"]["snapshot_id"]
    if document["tag"] is not None:
        back = f"icekeeper rollback {table} --to {document['tag']} --not-ancestor --catalog {catalog}"
        console.print(f"tag {document['tag']} keeps the old head for 30 days; {back} undoes this", soft_wrap=True)
    else:
        console.print(f"no tag keeps the old head {head}: {document['no_tag']}", soft_wrap=True)
    if document["aside"] is not None:
        then = f"icekeeper repair {table} --catalog {catalog} names what to give up, so that snapshots expire again"
        console.print(f"{document['aside']} keeps what can be read of it for 30 days; {then}", soft_wrap=True)


def _count(rows: int | None) -> str:
    return "?" if rows is None else f"{rows:,}"
