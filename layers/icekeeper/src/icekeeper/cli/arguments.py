"""Arguments and options that commands share, and the order, examples and exit codes that ``--help`` prints."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperGroup

from icekeeper.cli import completion
from icekeeper.engines.engine import EngineName
from icekeeper.errors import PolicyError
from icekeeper.model import TableName

Table: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="NS.TABLE", help="namespace and table, divided at the last dot", autocompletion=completion.tables
    ),
]
Patterns: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NS.TABLE|PATTERN",
        help="only these tables, or those of patterns such as 'shop.*'; default: all tables of the catalogs",
        autocompletion=completion.tables,
    ),
]


CATALOG = "ICEKEEPER_CATALOG"
"""The environment variable with the catalog of calls that name none."""


def only_catalog() -> str:
    """The catalog of a call that names none: the only configured catalog.

    Raises:
        PolicyError: none is configured, or several are.
    """
    if completion.is_asked():
        return ""
    from icekeeper.catalogs.load import known_catalogs

    names = sorted(known_catalogs())
    if len(names) == 1:
        return names[0]
    known = f"there are {', '.join(names)}" if names else "none is configured; see icekeeper docs getting-started"
    raise PolicyError(f"name the catalog with --catalog or {CATALOG}: {known}")


def only_catalogs() -> list[str]:
    """The same for a call that takes several catalogs; raises as :func:`only_catalog`."""
    return [os.environ.get(CATALOG) or only_catalog()]


CatalogName: TypeAlias = Annotated[
    str,
    typer.Option(
        "--catalog",
        "-c",
        metavar="C",
        envvar=CATALOG,
        autocompletion=completion.catalogs,
        default_factory=only_catalog,
        show_default=False,
        help="a catalog of PyIceberg's configuration (~/.pyiceberg.yaml), or a table bucket's ARN; by default the only "
        "configured catalog",
    ),
]
Catalogs: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--catalog",
        "-c",
        metavar="C",
        autocompletion=completion.catalogs,
        default_factory=only_catalogs,
        show_default=False,
        help="a catalog, as for the other commands; repeatable",
    ),
]
AnyCatalogs: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog",
        "-c",
        metavar="C",
        autocompletion=completion.catalogs,
        help="only this catalog; repeatable; default: all configured catalogs",
    ),
]
Operations: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--operations",
        metavar="LIST|all",
        help="comma-separated, such as compact,expire_snapshots",
        autocompletion=completion.operations,
    ),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="a policy setting for this call; repeatable", autocompletion=completion.keys
    ),
]
Engine: TypeAlias = Annotated[
    EngineName,
    typer.Option(
        "--engine",
        help="where files are rewritten: local (processes on this machine), spark, or auto (Spark if a session or"
        " cluster is available, or if a sort exceeds this machine's memory)",
    ),
]
Unsafe: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--unsafe",
        help="allow an orphan grace period, or a snapshot retention of this call, below 24 hours (tests,"
        " demonstrations), and snapshot_give_up_ids",
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="print exactly one JSON document")]


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_S = 366 * 86_400


def table_name(text: str) -> TableName:
    """Parse ``namespace.table``; raises PolicyError for other text."""
    try:
        return TableName.parse(text)
    except ValueError as error:
        raise PolicyError(str(error)) from None


def time_ms(text: str, option: str) -> int:
    """``90s``, ``30m``, ``6h`` or ``7d`` in milliseconds.

    Raises:
        PolicyError: the text has another form, or the time is 0 or above 366 days; the message names the option.
    """
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text.strip())
    seconds = 0 if match is None else int(match.group(1)) * _SECONDS[match.group(2)]
    if not 0 < seconds <= _LONGEST_S:
        raise PolicyError(f"{option} takes a time like 90s, 30m, 6h or 7d, at most 366d, not '{text}'")
    return seconds * 1000


def overrides(
    settings: Sequence[str] | None, operations: str | None = None, about: str = "one table", *, unsafe: bool = True
) -> dict[str, str]:
    """``--set`` and ``--operations`` as one layer of settings; ``about`` is the value of the call's ``Scope``.

    Raises:
        PolicyError: a setting is not KEY=VALUE, a key is given twice with different values, or it would do nothing; or
            the call is not ``unsafe``, and sets a retention of snapshots below a day.
    """
    from icekeeper.policy.age_floors import require_safe_retention
    from icekeeper.policy.keys import Scope, refuse_meaningless

    values: dict[str, str] = {}
    for setting in [*(settings or ()), *(() if operations is None else (f"operations={operations}",))]:
        key, separator, value = setting.partition("=")
        key, value = key.strip(), value.strip()
        if not separator or not key:
            raise PolicyError(f"a setting is KEY=VALUE, not '{setting}'")
        if values.get(key, value) != value:
            raise PolicyError(f"{key} is set twice, to '{values[key]}' and to '{value}'")
        values[key] = value
    refuse_meaningless(values, Scope(about))
    if not unsafe:
        require_safe_retention(values)
    return values


EXIT_CODES = (
    "0 done, or nothing to do",
    "1 failed or partial, unreachable, or damage found",
    "2 unknown table, catalog or key, or malformed value",
    "3 work is due (maintain --dry-run --exit-code)",
    "4 unknown whether rows are gone (erased)",
    "130 interrupted (Ctrl-C); 143 ended by SIGTERM",
)

EXAMPLES: Mapping[str, tuple[str, str]] = {
    "list": ("The tables of a catalog, their state and sizes", "'shop.*' --catalog lake --state work"),
    "detect": ("Which tables need work, and why", "--catalog lake"),
    "health": ("How tables look, and what is wrong with them", "shop.orders --catalog lake"),
    "plan": ("What a pass would do, and what branches and tags cost", "shop.orders --catalog lake"),
    "maintain": ("Run a maintenance pass over one table, or over several", "'shop.*' --catalog lake --dry-run"),
    "verify": ("Check that every referenced file exists", "shop.orders --catalog lake"),
    "repair": ("Mend damage that verify found, from what is known", "shop.orders --catalog lake --dry-run"),
    "rollback": (
        "Set a branch back to a snapshot that is whole",
        "shop.orders --to 8744736658442914487 --catalog lake",
    ),
    "erased": ("Prove that rows are gone from every object", "shop.orders --catalog lake --where 'user_id = 5'"),
    "history": ("What past passes did, over one table or all", "--since 24h --failed"),
    "report": ("A page of catalogs' tables, for a browser", "--catalog lake --fresh '*' --output lake.html"),
    "run": ("Detect and maintain, every interval, without AWS", "--catalog lake --interval 1h"),
    "policy": ("The settings in force for a table, and their sources", ""),
    "policy init": ("Begin a file with the settings of all tables", "/etc/icekeeper/icekeeper.yaml"),
    "policy check": ("What each rule of that file sets for which tables", "icekeeper.yaml --catalog lake"),
    "policy show": ("The settings that are not defaults, with their sources", "shop.orders --catalog lake"),
    "policy set": ("Store settings in tables", "shop.orders target_file_size_mb=128 --catalog lake"),
    "policy unset": ("Remove settings from tables", "shop.orders target_file_size_mb --catalog lake"),
    "policy reset": ("Remove all settings from tables", "shop.orders --catalog lake"),
    "show": ("The schema, specs, refs and snapshots of a table", "shop.orders --catalog lake"),
    "advise": ("Changes that would help a table, but that no pass makes", "shop.orders --catalog lake"),
    "apply": ("Do what a saved plan says, and nothing else", "plan.json"),
    "pause": ("Stop all passes over tables until a time", "'shop.*' --catalog lake --until 6h"),
    "resume": ("End the pause of tables", "'shop.*' --catalog lake"),
    "pin": ("Snapshots that must stay for readers", ""),
    "pin add": ("Pin a snapshot for a while", "shop.orders --catalog lake --snapshot current --ttl 6h --name report"),
    "pin list": ("The pins in force", "shop.orders --catalog lake"),
    "pin remove": ("Remove a pin", "shop.orders --catalog lake --name report"),
    "stage": ("Loads whose files await a commit", ""),
    "stage add": ("Record the files of a load", "shop.orders --catalog lake --name load-42 --file-list files.txt"),
    "stage adopted": (
        "Record that a commit references the files of a load",
        "shop.orders --catalog lake --name load-42",
    ),
    "stage failed": (
        "Record that a load failed; its files may be deleted",
        "shop.orders --catalog lake --name load-42",
    ),
    "stage list": ("The recorded loads", "shop.orders --catalog lake"),
    "metrics": ("Metrics of all catalogs for Prometheus", "--output icekeeper.prom"),
    "doctor": ("Check catalogs, stores, credentials, state and engine", "--catalog lake"),
    "docs": ("The pages of the documentation", "recovery"),
    "demo": ("Make a messy table bucket on this machine healthy", "--engine local"),
    "orphans": (
        "Remove the orphans of a whole bucket, with one listing",
        "--catalog lake --bucket my-bucket --dry-run",
    ),
    "claims": ("Other tables that may need files near a table", ""),
    "claims list": ("The other tables that may need files near a table", "shop.orders --catalog lake"),
    "claims exclude": ("Let an unreadable table block no deletion", "shop.broken --catalog lake"),
    "claims forget": (
        "Forget a table that is gone, with its catalog",
        "shop.orders --catalog lake --by-catalog old --by-table shop.orders",
    ),
    "request": ("Ask the deployed stack for a pass over one table", ""),
    "request add": ("File a request, and wait for its result", "shop.orders --catalog lake --operations compact"),
    "request list": ("The requests that no run has taken yet", "--catalog lake"),
    "request withdraw": ("Withdraw a request", "shop.orders --catalog lake"),
}
"""Commands by name, in the order of use: the purpose in one line, and the arguments of an example."""
FOR_OPERATORS = ("orphans", "claims", "request")
"""Commands that ``--help`` lists last: for a whole bucket, for other tables, for the deployed stack."""


class CommandGroup(TyperGroup):
    """Lists its commands in the order of :data:`EXAMPLES`; commands that are missing there come last."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = {name: number for number, name in enumerate(EXAMPLES)}
        return sorted(super().list_commands(ctx), key=lambda name: order.get(_named(ctx, name), len(order)))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        shown = {name: command for name, command in found if not command.hidden}
        limit = formatter.width - 6 - max(map(len, shown))
        for heading, of_operators in (("Commands", False), ("Commands for operators", True)):
            names = [name for name in shown if (_named(ctx, name) in FOR_OPERATORS) is of_operators]
            if names:
                with formatter.section(heading):
                    formatter.write_dl([(name, shown[name].get_short_help_str(limit)) for name in names])

    def invoke(self, ctx: Any) -> Any:
        if (script := sys.modules.get("icekeeper_command")) is not None:  # else a program or a test calls us
            script.let_commands_interrupt()
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:  # Typer would end the process without a message
            raise typer.Abort from interrupt

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        name = _named(ctx, cmd_name)
        if command is not None and name in EXAMPLES:
            line, arguments = EXAMPLES[name]
            command.short_help = line
            # Lines after \b are not wrapped.
            example = f"\b\nExample:\n  icekeeper {name} {arguments}\n\n" if arguments else ""
            command.epilog = example or None
        return command


def _named(ctx: Any, name: str) -> str:
    """The command without the program: ``policy set``."""
    return " ".join([*ctx.command_path.split()[1:], name])
