"""How commands take several tables and patterns of tables: each is resolved once, and a table that fails does not stop
the others.

A call that names one table prints its document; other calls print ``{"catalog", "status", "tables": [...]}``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from icekeeper.cli import completion
from icekeeper.cli.arguments import table_name
from icekeeper.cli.console import EXIT_OK, EXIT_USAGE, notify, people, print_failed, print_json
from icekeeper.errors import MaintenanceError, PartlyListed, PolicyError
from icekeeper.text import counted

if TYPE_CHECKING:
    from rich.console import Console

    from icekeeper.catalogs.catalog import Catalog
    from icekeeper.model import TableName
    from icekeeper.report.outcome import ListingWriter, PassOutcome, PassStatus

Tables: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NS.TABLE|PATTERN",
        help="tables, or patterns of tables such as 'shop.*'",
        autocompletion=completion.tables,
    ),
]
AllTables: TypeAlias = Annotated[bool, typer.Option("--all", help="every table of the catalog, one after the other")]
Yes: TypeAlias = Annotated[
    bool, typer.Option("--yes", "-y", help="change the tables of a pattern without asking; needed without a terminal")
]

_MOST_ASKED = 20


def is_pattern(text: str) -> bool:
    """Whether the text names tables by wildcards."""
    return "*" in text or "?" in text


def names_one(tables: Sequence[str] | None) -> bool:
    """Whether a call names exactly one table."""
    return tables is not None and len(tables) == 1 and not is_pattern(tables[0])


def chosen_tables(
    catalog: Catalog, tables: Sequence[str] | None, *, all_tables: bool | None = None
) -> Sequence[TableName]:
    """The named tables and those that patterns match, or all tables of the catalog, each once.

    Several tables are sorted by name.  The catalog is listed once, and only for patterns; a sentence is printed if it
    did not allow some namespaces to be listed.  ``all_tables`` is ``None`` for a command without that option.

    Raises:
        PolicyError: nothing is named, both names and ``all_tables`` are given, or a pattern matches nothing.
        StorageError: the catalog cannot be listed.
    """
    from icekeeper.policy.policy_file import matches

    given = list(dict.fromkeys(tables or ()))
    if bool(given) == bool(all_tables):
        ways = "a pattern such as 'shop.*'" + (", or '*' for all" if all_tables is None else "")
        raise PolicyError(f"name a table or {ways}" if all_tables is None else f"name a table, {ways}, or --all")
    patterns = ["*"] if all_tables else [word for word in given if is_pattern(word)]
    chosen = {table_name(word) for word in given if not is_pattern(word)}
    if not patterns:
        return sorted(chosen, key=str)
    listed: list[TableName] = []
    try:
        listed.extend(catalog.list_tables())
    except PartlyListed as error:
        notify(str(error))
    for pattern in patterns:
        found = [name for name in listed if matches(str(name), (pattern,))]
        if not found:
            what = f"catalog {catalog.id} has no table"
            raise PolicyError(what if all_tables else f"no table of catalog {catalog.id} matches '{pattern}'")
        chosen.update(found)
    return sorted(chosen, key=str)


def confirm(names: Sequence[TableName], tables: Sequence[str], *, yes: bool) -> None:
    """Show the tables that patterns chose, and ask whether to change them; named tables need no confirmation.

    Raises:
        PolicyError: the answer is no, or there is no terminal to ask on and ``yes`` is not given.
    """
    if yes or not any(map(is_pattern, tables)):
        return
    what = f"{counted(len(names), 'table')} would be changed"

    def show(console: Console) -> None:
        for name in names[:_MOST_ASKED]:
            console.print(f"  {name}", soft_wrap=True)
        if len(names) > _MOST_ASKED:
            console.print(f"  and {len(names) - _MOST_ASKED} more")

    ask(what, show, f"{what}: {', '.join(map(str, names))}")


def ask(what: str, show: Callable[[Console], object], in_words: str = "") -> None:
    """Show what would be done, and ask whether to do it; ``in_words`` is the same for an error, by default ``what``.

    Raises:
        PolicyError: the answer is no, or there is no terminal to ask on.
    """
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        raise PolicyError(f"{in_words or what}; there is no terminal to ask on, confirm with --yes")
    show(people(as_json=True))
    if not typer.confirm(f"{what}. Continue?", err=True):
        raise PolicyError("not confirmed; nothing was changed")


@dataclass(frozen=True, slots=True)
class Shown:
    """The answer about one table: its JSON document, how it is printed for people, and a sentence if it is not well."""

    document: Mapping[str, Any]
    show: Callable[[Console], object]
    problem: str = ""


def answer_each(
    catalog: Catalog,
    tables: Sequence[str] | None,
    answer: Callable[[TableName], Shown],
    *,
    as_json: bool,
    before: Callable[[Sequence[TableName]], object] = lambda names: None,
) -> int:
    """Print the answer about each table of a call, and return the exit code.

    ``before`` is called once with the chosen tables, and may raise.  An error ends the call only if it names one table;
    if every table ends with a PolicyError, the call is wrong.

    Raises:
        MaintenanceError: the tables cannot be resolved, or the only named table ended with an error.
    """
    names, console = chosen_tables(catalog, tables), people(as_json=as_json)
    before(names)
    results: list[Shown | FailedTable] = []
    for name in names:
        try:
            results.append(answer(name))
        except MaintenanceError as error:
            if names_one(tables):
                raise
            results.append(FailedTable(str(name), catalog.id.name, error))
        results[-1].show(console)
    documents = [result.document for result in results]
    problems = list(dict.fromkeys(result.problem for result in results if result.problem))
    if as_json:
        status = _of_all([document["status"] for document in documents])
        several = {"catalog": catalog.id.name, "status": status, "tables": documents}
        print_json(documents[0] if names_one(tables) else several)
    if not problems:
        return EXIT_OK
    is_wrong = all(isinstance(result, FailedTable) and isinstance(result.error, PolicyError) for result in results)
    failed = print_failed("; ".join(problems))
    return EXIT_USAGE if is_wrong else failed


@dataclass(frozen=True, slots=True)
class FailedTable:
    """One of several tables, which ended with an error."""

    table: str
    catalog: str
    error: MaintenanceError

    @property
    def status(self) -> PassStatus:
        """The status, as that of a pass."""
        from icekeeper.report.outcome import PassStatus

        return PassStatus.FAILED

    @property
    def problem(self) -> str:
        """The sentence of the error, with the table's name."""
        return str(self.error) if self.table in str(self.error) else f"{self.table}: {self.error}"

    @property
    def document(self) -> Mapping[str, Any]:
        """An element of ``tables``."""
        error = {"type": type(self.error).__name__, "message": str(self.error)}
        return {"table": self.table, "catalog": self.catalog, "status": "failed", "error": error}

    def to_json(self, listing: ListingWriter) -> dict[str, Any]:
        """The same, as a pass has it."""
        return dict(self.document)

    def show(self, console: Console) -> None:
        """Print the line of the table."""
        from icekeeper.report.terminal import print_line

        print_line(console, self.table, self.status, str(self.error))


Results: TypeAlias = Sequence["PassOutcome | FailedTable"]


def run_each(
    catalog: str, names: Sequence[TableName], run: Callable[[TableName], PassOutcome], console: Console
) -> Results:
    """Run a pass over each table in turn, and print a line for each; an error does not stop the others."""
    from icekeeper.report.terminal import changes_sentence, print_line

    results: list[PassOutcome | FailedTable] = []
    for name in names:
        try:
            passed = run(name)
        except MaintenanceError as error:
            failed = FailedTable(str(name), catalog, error)
            results.append(failed)
            failed.show(console)
        else:
            results.append(passed)
            plans = passed.dry_run and any(part.status.value != "skipped" for part in passed.operations)
            print_line(console, passed.table, passed.status, changes_sentence(passed), dry_run=plans)
    return results


def of_several(results: Results) -> str:
    """How several passes ended: ``failed`` if none succeeded, ``partial`` if some did not."""
    return _of_all([result.status.value for result in results])


def _of_all(statuses: Sequence[str]) -> str:
    good = statuses.count("succeeded")
    return "succeeded" if good == len(statuses) else "partial" if good else "failed"


def trouble_of(results: Results) -> str:
    """A sentence about all passes that did not succeed; empty if all succeeded."""
    from icekeeper.report.outcome import PassStatus
    from icekeeper.report.terminal import trouble

    bad = [result for result in results if result.status is not PassStatus.SUCCEEDED]
    return "; ".join(result.problem if isinstance(result, FailedTable) else trouble(result) for result in bad)
