"""``icekeeper policy``: show the settings in force for tables; change those in their properties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icekeeper.cli import completion
from icekeeper.cli.arguments import AsJson, CatalogName, CommandGroup, Settings, Unsafe, overrides
from icekeeper.cli.console import about
from icekeeper.cli.several import Shown, Tables, Yes, answer_each, confirm, is_pattern, names_one
from icekeeper.errors import PolicyError

if TYPE_CHECKING:
    from rich.console import Console

    from icekeeper.administration.settings import ResolvePolicy
    from icekeeper.catalogs.catalog import LoadedTable
    from icekeeper.model import TableName
    from icekeeper.pass_context.table_handle import TableHandle
    from icekeeper.policy import ResolvedPolicy


policy_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="The settings in force for a table, and the source of each."
)


@policy_app.command("show")
def policy_show(
    catalog: CatalogName,
    tables: Tables = None,
    settings: Settings = None,
    show_all: Annotated[bool, typer.Option("--all", help="also the settings that have their defaults")] = False,
    unsafe: Unsafe = False,
    as_json: AsJson = False,
) -> int:
    """Print the settings of tables that are not defaults, with their sources, and those that are ignored.

    With --json all settings are printed.
    """
    from icekeeper.policy import POLICY_KEYS
    from icekeeper.policy.resolve import short_retentions
    from icekeeper.report.terminal import print_policy, print_warnings
    from icekeeper.runtime import Runtime

    chosen = overrides(settings, about="icekeeper run")  # includes the keys of scheduling
    runtime = Runtime.open(catalog)

    def shown(name: TableName) -> Shown:
        resolved = runtime.policy(runtime.catalog.load(name), chosen, unsafe=unsafe)
        ignored = [setting.document() for setting in resolved.ignored]

        def show(console: Console) -> None:
            if as_json:  # the document has all of it
                return
            if not names_one(tables):
                console.print(f"{name}:", style="bold", soft_wrap=True)
            sentences = [setting.sentence() for setting in resolved.ignored]
            print_policy(console, resolved.rows(defaults=show_all), sentences)
            if not show_all:
                others = sum(not resolved.is_set(key) for key in POLICY_KEYS)
                console.print(f"{others} settings have their defaults; --all prints them, too", style="dim")
            print_warnings(console, [*short_retentions(resolved)])

        return Shown({**about(str(name), catalog), "policy": resolved.documents(), "ignored": ignored}, show)

    return answer_each(runtime.catalog, tables, shown, as_json=as_json)


def _words(setting: str, verb: str) -> Any:
    """The argument of a command that changes settings of tables."""
    what = f"tables, or patterns such as 'shop.*', then settings to {verb} them"
    return typer.Argument(metavar=f"NS.TABLE|PATTERN... {setting}", help=what, autocompletion=completion.tables)


@policy_app.command("set")
def policy_set(
    catalog: CatalogName,
    words: Annotated[list[str] | None, _words("KEY=VALUE", "store in")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="the same as an option; repeatable")
    ] = None,
    yes: Yes = False,
    unsafe: Unsafe = False,
    as_json: AsJson = False,
) -> int:
    """Store settings in tables, as their properties icekeeper.KEY; if a setting of a table is wrong, none is stored."""
    from icekeeper.administration.settings import set_settings

    tables, assignments = _divided(words)
    chosen = overrides(
        [*assignments, *(settings or ())], about="icekeeper run"
    )  # each setting is also checked as a table property
    if not chosen:
        raise PolicyError("policy set takes one or more settings as KEY=VALUE, for example min_input_files=10")
    change = Change(lambda handle, policy: set_settings(handle, chosen, policy), unsafe=unsafe, must_fit=True)
    return _change(tables, catalog, change, yes=yes, as_json=as_json)


@policy_app.command("unset")
def policy_unset(
    catalog: CatalogName,
    words: Annotated[list[str] | None, _words("KEY", "remove from")] = None,
    yes: Yes = False,
    unsafe: Unsafe = False,
    as_json: AsJson = False,
) -> int:
    """Remove settings from tables; the values of lower layers apply again."""
    from icekeeper.administration.settings import unset_settings

    tables, keys = _divided(words)
    if not keys:
        raise PolicyError("policy unset takes one or more keys, for example min_input_files")
    change = Change(lambda handle, policy: unset_settings(handle, keys, policy), unsafe=unsafe)
    return _change(tables, catalog, change, yes=yes, as_json=as_json)


@policy_app.command("reset")
def policy_reset(
    catalog: CatalogName, tables: Tables = None, yes: Yes = False, unsafe: Unsafe = False, as_json: AsJson = False
) -> int:
    """Remove every setting icekeeper.KEY from tables; Iceberg's own properties stay."""
    from icekeeper.administration.settings import reset_settings

    return _change(tables or (), catalog, Change(reset_settings, unsafe=unsafe), yes=yes, as_json=as_json)


def _divided(words: Sequence[str] | None) -> tuple[Sequence[str], Sequence[str]]:
    """The tables of a call, and its keys or settings; the first word is always a table."""
    first, others = list(words or ())[:1], list(words or ())[1:]
    settings = [word for word in others if "=" in word or not ("." in word or is_pattern(word))]
    return [*first, *(word for word in others if word not in settings)], settings


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the settings of a table.

    Without ``must_fit``, it may leave a policy that does not fit the table, so that a wrong policy can be repaired in
    steps.
    """

    apply: Callable[[TableHandle, ResolvePolicy], ResolvedPolicy]
    unsafe: bool
    must_fit: bool = False


def _change(tables: Sequence[str], catalog: str, change: Change, *, yes: bool, as_json: bool) -> int:
    """Change the settings of tables, and print each change with the value before and after."""
    from icekeeper.administration.settings import setting_changes
    from icekeeper.policy.resolve import short_retentions
    from icekeeper.report.terminal import print_changes, print_warnings
    from icekeeper.runtime import Runtime

    runtime = Runtime.open(catalog)

    def resolve_policy(loaded: LoadedTable) -> ResolvedPolicy:
        if change.must_fit:
            return runtime.fitting_policy(loaded, unsafe=change.unsafe)
        return runtime.policy(loaded, {}, unsafe=change.unsafe)

    def changed(name: TableName) -> Shown:
        handle = runtime.table(name)
        before = handle.load()
        found: ResolvedPolicy | None = None
        with suppress(PolicyError):  # the change may repair exactly this error
            found = runtime.policy(before, {}, unsafe=change.unsafe)
        after = change.apply(handle, resolve_policy)
        changes = setting_changes(found, after, before.metadata.properties)

        def show(console: Console) -> None:
            print_changes(console, str(name), changes)
            print_warnings(console, [*short_retentions(after)])

        return Shown({**about(str(name), catalog), "changes": changes, "policy": after.documents()}, show)

    return answer_each(
        runtime.catalog, tables, changed, as_json=as_json, before=lambda names: confirm(names, tables, yes=yes)
    )
