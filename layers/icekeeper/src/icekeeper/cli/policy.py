"""``icekeeper policy``: show the settings in force for a table; change those in its properties."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from icekeeper.cli.arguments import AsJson, CatalogName, CommandGroup, Settings, Table, Unsafe, overrides, table_name
from icekeeper.cli.console import EXIT_OK, about, answer, people, print_json
from icekeeper.errors import PolicyError

if TYPE_CHECKING:
    from icekeeper.administration.settings import ResolvePolicy
    from icekeeper.catalogs.catalog import LoadedTable
    from icekeeper.pass_context.table_handle import TableHandle
    from icekeeper.policy import ResolvedPolicy


policy_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="The settings in force for a table, and the source of each."
)


@policy_app.command("show")
def policy_show(
    table: Table,
    catalog: CatalogName,
    settings: Settings = None,
    show_all: Annotated[bool, typer.Option("--all", help="also the settings that have their defaults")] = False,
    unsafe: Unsafe = False,
    as_json: AsJson = False,
) -> int:
    """Print the settings of a table that are not defaults, with their sources, and those that are ignored.

    With --json all settings are printed.
    """
    from icekeeper.policy import POLICY_KEYS
    from icekeeper.policy.resolve import short_retentions
    from icekeeper.report.terminal import print_policy, print_warnings
    from icekeeper.runtime import Runtime

    chosen = overrides(settings, about="icekeeper run")  # includes the keys of scheduling
    runtime = Runtime.open(catalog)
    resolved = runtime.policy(runtime.catalog.load(table_name(table)), chosen, unsafe=unsafe)
    if as_json:
        ignored = [setting.document() for setting in resolved.ignored]
        print_json({**about(table, catalog), "policy": resolved.documents(), "ignored": ignored})
    else:
        sentences = [setting.sentence() for setting in resolved.ignored]
        console = people(as_json=False)
        print_policy(console, resolved.rows(defaults=show_all), sentences)
        if not show_all:
            others = sum(not resolved.is_set(key) for key in POLICY_KEYS)
            console.print(f"{others} settings have their defaults; --all prints them, too", style="dim")
        print_warnings(console, [*short_retentions(resolved)])
    return EXIT_OK


@policy_app.command("set")
def policy_set(
    table: Table,
    catalog: CatalogName,
    assignments: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="settings to store in the table")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="the same as an option; repeatable")
    ] = None,
    unsafe: Unsafe = False,
    as_json: AsJson = False,
) -> int:
    """Store settings in a table, as its properties icekeeper.KEY; if a setting is wrong, none is stored."""
    from icekeeper.administration.settings import set_settings

    chosen = overrides(
        [*(assignments or ()), *(settings or ())], about="icekeeper run"
    )  # each setting is also checked as a table property
    if not chosen:
        raise PolicyError("policy set takes one or more settings as KEY=VALUE, for example min_input_files=10")
    return _change(
        table,
        catalog,
        lambda handle, policy: set_settings(handle, chosen, policy),
        unsafe=unsafe,
        as_json=as_json,
        must_fit=True,
    )


@policy_app.command("unset")
def policy_unset(
    table: Table,
    catalog: CatalogName,
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="settings to remove from the table")],
    unsafe: Unsafe = False,
    as_json: AsJson = False,
) -> int:
    """Remove settings from a table; the values of lower layers apply again."""
    from icekeeper.administration.settings import unset_settings

    return _change(
        table, catalog, lambda handle, policy: unset_settings(handle, keys, policy), unsafe=unsafe, as_json=as_json
    )


@policy_app.command("reset")
def policy_reset(table: Table, catalog: CatalogName, unsafe: Unsafe = False, as_json: AsJson = False) -> int:
    """Remove every setting icekeeper.KEY from a table; Iceberg's own properties stay."""
    from icekeeper.administration.settings import reset_settings

    return _change(table, catalog, reset_settings, unsafe=unsafe, as_json=as_json)


def _change(
    name: str,
    catalog: str,
    change: Callable[[TableHandle, ResolvePolicy], ResolvedPolicy],
    *,
    unsafe: bool,
    as_json: bool,
    must_fit: bool = False,
) -> int:
    """Change settings, and print each change with the value before and after.

    A removal may leave a policy that does not fit the table, so that a wrong policy can be repaired in steps.
    """
    from icekeeper.administration.settings import setting_changes
    from icekeeper.policy.resolve import short_retentions
    from icekeeper.report.terminal import print_changes, print_warnings
    from icekeeper.runtime import Runtime

    runtime = Runtime.open(catalog)
    handle = runtime.table(table_name(name))
    before = handle.load()
    found: ResolvedPolicy | None = None
    with suppress(PolicyError):  # the change may repair exactly this error
        found = runtime.policy(before, {}, unsafe=unsafe)

    def resolve_policy(loaded: LoadedTable) -> ResolvedPolicy:
        if must_fit:
            return runtime.fitting_policy(loaded, unsafe=unsafe)
        return runtime.policy(loaded, {}, unsafe=unsafe)

    after = change(handle, resolve_policy)
    changes = setting_changes(found, after, before.metadata.properties)
    console = answer({**about(name, catalog), "changes": changes, "policy": after.documents()}, as_json=as_json)
    print_changes(console, name, changes)
    print_warnings(console, [*short_retentions(after)])
    return EXIT_OK
