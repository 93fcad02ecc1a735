"""``icekeeper pin``: readers ask that a snapshot stays for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from icekeeper.cli.arguments import AsJson, CatalogName, Table, table_name, ttl_ms
from icekeeper.cli.command_help import CommandGroup
from icekeeper.cli.console import EXIT_OK, about, answer
from icekeeper.machine.clock import iso_utc

if TYPE_CHECKING:
    from icekeeper.state.store import Pin

__all__ = ["pin_app"]

pin_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Snapshots that readers rely on: what is pinned does not expire."
)


@pin_app.command("add")
def pin_add(
    table: Table,
    catalog: CatalogName,
    snapshot: Annotated[str, typer.Option("--snapshot", metavar="ID|current", help="it and all newer ones stay")],
    ttl: Annotated[str, typer.Option("--ttl", metavar="TIME", help="how long, for example 90s, 30m, 6h or 7d")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="N", help="the same name prolongs; without one it is made up")
    ] = None,
    tag: Annotated[bool, typer.Option("--tag", help="also as an Iceberg tag of that name, for other engines")] = False,
    as_json: AsJson = False,
) -> int:
    """Pin a snapshot until its time is over."""
    from icekeeper.administration.pins import add_pin, pin_warnings
    from icekeeper.report.terminal import print_pins, print_warnings
    from icekeeper.runtime import Runtime

    length_ms = ttl_ms(ttl)
    handle = Runtime.open(catalog).table(table_name(table))
    pin = pin_json(add_pin(handle, snapshot=snapshot, ttl_ms=length_ms, name=name, with_tag=tag))
    warnings = pin_warnings(handle.catalog, handle.table)
    told = {"warnings": list(warnings)} if warnings else {}
    console = answer({**about(table, catalog), "pin": pin, **told}, as_json=as_json)
    print_pins(console, [pin])
    print_warnings(console, warnings)
    return EXIT_OK


@pin_app.command("list")
def pin_list(table: Table, catalog: CatalogName, as_json: AsJson = False) -> int:
    """Print the pins that hold now, those of running jobs too."""
    from icekeeper.administration.pins import list_pins
    from icekeeper.report.terminal import print_pins
    from icekeeper.runtime import Runtime

    pins = [pin_json(pin) for pin in list_pins(Runtime.open(catalog).table(table_name(table)))]
    console = answer({**about(table, catalog), "pins": pins}, as_json=as_json)
    print_pins(console, pins)
    return EXIT_OK


@pin_app.command("remove")
def pin_remove(
    table: Table,
    catalog: CatalogName,
    name: Annotated[str, typer.Option("--name", metavar="N", help="of the pin")],
    as_json: AsJson = False,
) -> int:
    """Remove a pin, and the tag that was written for it."""
    from icekeeper.administration.pins import remove_pin
    from icekeeper.runtime import Runtime

    removed = remove_pin(Runtime.open(catalog).table(table_name(table)), name)
    console = answer({**about(table, catalog), "removed": removed.name}, as_json=as_json)
    console.print(f"{table}: pin {removed.name} removed", soft_wrap=True)
    return EXIT_OK


def pin_json(pin: Pin) -> dict[str, Any]:
    """One pin as the JSON documents show it."""
    return {
        "name": pin.name,
        "snapshot_id": pin.snapshot_id,
        "metadata_location": pin.metadata_location,
        "expires_ms": pin.expires_ms,
        "expires": iso_utc(pin.expires_ms),
        "kind": pin.kind.value,
        "tag": pin.tag,
    }
