"""``icekeeper claims``: list the tables whose files near another table are spared, and forget those that are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from icekeeper.cli.arguments import AsJson, CatalogName, Table, table_name
from icekeeper.cli.command_help import CommandGroup
from icekeeper.cli.console import EXIT_OK, about, answer

if TYPE_CHECKING:
    from icekeeper.state.claims import TableClaims

__all__ = ["claims_app"]

claims_app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Other tables that were seen to have files at a table's folders, or around them.",
)


@claims_app.command("list")
def claims_list(table: Table, catalog: CatalogName, as_json: AsJson = False) -> int:
    """Print which tables, of any catalog that shares the state, may need files in this table's folders."""
    from icekeeper.deletion.forgotten_claims import claims_near
    from icekeeper.report.terminal import print_claims
    from icekeeper.runtime import Runtime

    found = [claims_json(one) for one in claims_near(Runtime.open(catalog).table(table_name(table)))]
    console = answer({**about(table, catalog), "claims": found}, as_json=as_json)
    print_claims(console, found)
    return EXIT_OK


@claims_app.command("forget")
def claims_forget(
    table: Table,
    catalog: CatalogName,
    by_catalog: Annotated[str, typer.Option("--by-catalog", metavar="C", help="the catalog that is gone, as listed")],
    by_table: Annotated[str, typer.Option("--by-table", metavar="NS.TABLE", help="its table, as listed")],
    by_warehouse: Annotated[
        str | None, typer.Option("--by-warehouse", metavar="W", help="its warehouse, where several are listed")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="also where that catalog is configured here")] = False,
    as_json: AsJson = False,
) -> int:
    """Forget a table that is gone for good, with its catalog: its files are no longer spared; the journal tells who."""
    from icekeeper.catalogs.load import served_catalog
    from icekeeper.deletion.forgotten_claims import forget_claims
    from icekeeper.runtime import Runtime

    handle = Runtime.open(catalog).table(table_name(table))
    forgotten = forget_claims(handle, by_catalog, table_name(by_table), by_warehouse, served_catalog, force=force)
    told = f"{table}: {forgotten.table} of catalog {forgotten.catalog} is forgotten"
    console = answer({**about(table, catalog), "forgotten": [claims_json(forgotten)]}, as_json=as_json)
    console.print(told, soft_wrap=True)
    return EXIT_OK


@claims_app.command("exclude")
def claims_exclude(table: Table, catalog: CatalogName, as_json: AsJson = False) -> int:
    """Say that a table which cannot be read needs no files of others: it stops no deletion until it can be read."""
    from icekeeper.deletion.forgotten_claims import exclude_entry
    from icekeeper.model import TableName
    from icekeeper.runtime import Runtime

    runtime = Runtime.open(catalog)
    excluded = exclude_entry(runtime.catalog, TableName.recorded(table), runtime.state)
    console = answer({**about(table, catalog), "excluded": [claims_json(excluded)]}, as_json=as_json)
    console.print(f"{table} of catalog {excluded.catalog} is excluded until it can be read", soft_wrap=True)
    return EXIT_OK


def claims_json(claims: TableClaims) -> dict[str, Any]:
    """One entry as the JSON documents show it; folders are normalised."""
    return {
        "catalog": claims.catalog,
        "warehouse": claims.warehouse,
        "table": str(claims.table),
        "uuid": claims.uuid,
        "location": claims.location,
        "folders": sorted(claims.folders),
    }
