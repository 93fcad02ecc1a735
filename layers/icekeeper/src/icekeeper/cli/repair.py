"""``icekeeper repair``: show what can be mended in a table, ask, and do exactly that."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from icekeeper.cli.arguments import AsJson, CatalogName, Table, table_name
from icekeeper.cli.console import EXIT_OK, people, print_failed, print_json
from icekeeper.cli.saved_plans import save_repair
from icekeeper.cli.several import ask
from icekeeper.text import counted

if TYPE_CHECKING:
    from icekeeper.repair.repair import RepairOutcome
    from icekeeper.verification.checks import Verification


Keep: TypeAlias = Annotated[
    int | None,
    typer.Option("--keep", metavar="N", min=1, help="which entry stays of a file that is listed twice, differently"),
]
PointTo: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--point-to",
        metavar="FILE",
        help="only point the catalog at this newer metadata file, if nothing else continues the table's state",
    ),
]


def repair(
    catalog: CatalogName,
    table: Table,
    file_metrics: Annotated[
        bool,
        typer.Option(
            "--repair-file-metrics", help="also read every file's footer, and correct sizes, counts and bounds"
        ),
    ] = False,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="drop files that are gone for good; their rows are lost")
    ] = False,
    keep: Keep = None,
    branch: Annotated[
        str | None, typer.Option("--branch", metavar="NAME", help="the branch to repair, by default that of the policy")
    ] = None,
    point_to: PointTo = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be mended, and change nothing")] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE",
            dir_okay=False,
            help="write the plan for review and icekeeper apply; change nothing",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="repair without asking; needed without a terminal")] = False,
    as_json: AsJson = False,
) -> int:
    """Mend damage that verify finds, as far as it can be mended from what is known, in one commit.

    Shows the plan and asks first.  The head from before the repair stays for 30 days under a tag.
    """
    from icekeeper.repair.plan import RepairOptions
    from icekeeper.report.terminal import print_repair
    from icekeeper.runtime import Runtime

    options = RepairOptions(
        file_metrics=file_metrics, drop_missing=drop_missing, keep=keep, branch=branch, point_to=point_to
    )
    runtime, name, console = Runtime.open(catalog), table_name(table), people(as_json=as_json)
    found, verified = runtime.plan_repair(name, options), None
    is_open = found.plan is not None and not found.plan.is_empty
    print_repair(console, found.to_json())
    if save is not None and found.plan is not None:
        save_repair(save, runtime.repair_to_save(found, options))
        console.print(f"the plan is saved; icekeeper apply {save} does it within 24 hours", soft_wrap=True)
    elif is_open and not dry_run and found.plan is not None:
        if not yes:
            ask(f"{name} would be repaired", lambda console: None)
        found, verified = runtime.repair(name, options, found.plan.digest)
        console.print(found.summary, soft_wrap=True)
    if as_json:
        print_json(found.to_json())
    return _exit_code(found, verified)


def _exit_code(found: RepairOutcome, verified: Verification | None) -> int:
    if verified is not None and not verified.ok:
        return print_failed(f"{found.table}: verify still finds {counted(len(verified.problems), 'problem')}")
    if found.plan is not None and found.plan.unmended:
        left = counted(len(found.plan.unmended), "finding")
        return print_failed(f"{found.table}: {left} cannot be mended so; the lines above say why")
    return EXIT_OK
