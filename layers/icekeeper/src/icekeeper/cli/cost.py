"""``icekeeper cost``: what this deployment costs a month, beside what AWS's own maintenance would."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from icekeeper.cli.arguments import AsJson
from icekeeper.cli.console import EXIT_OK, answer
from icekeeper.errors import PolicyError, StorageError

if TYPE_CHECKING:
    from icekeeper.costs.month import Bill
    from icekeeper.state.lake_stats import LakeStatsStore

__all__ = ["cost"]

_DAY_H = 24


def cost(
    catalogs: Annotated[
        list[str] | None,
        typer.Option("--catalog", metavar="C", help="of a catalog's tables, what each costs; repeatable"),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", metavar="N", min=1, max=400, help="from how many days the month is reckoned")
    ] = 30,
    prices: Annotated[
        list[str] | None,
        typer.Option("--price", metavar="NAME=USD", help="a price of your region or contract; repeatable"),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Say what this deployment costs a month, by what its functions and jobs recorded; changes nothing."""
    from icekeeper.costs.given_prices import priced_anew
    from icekeeper.costs.month import month_of
    from icekeeper.machine.clock import HOUR_MS, system_clock
    from icekeeper.machine.resources import variables_set
    from icekeeper.prices import US_EAST_1
    from icekeeper.report.bill import print_bill
    from icekeeper.state.open import open_state
    from icekeeper.state.usage import hour_of, hours_between

    chosen = priced_anew(US_EAST_1, _given(prices or ()))
    now_ms = system_clock()
    last, state = hour_of(now_ms), open_state(variables_set(os.environ))
    tables = _tables_of(catalogs or (), state.lake_stats)
    hours = state.usage.between(hour_of(now_ms - days * _DAY_H * HOUR_MS), last)
    if not hours:
        raise StorageError(
            f"nothing that AWS bills was recorded in the last {days} days: set ICEKEEPER_STATE to the state table of a "
            "deployment (the stack's output State), and wait for its first run"
        )
    recorded_hours = hours_between(hours[0].hour, last) + 1
    bill = month_of(hours, recorded_hours, chosen)
    document = {
        "currency": "USD",
        "per_month": {"total": _cents(bill.total), **{key: _cents(usd) for key, usd in bill.by_service.items()}},
        "aws_own": {key: _cents(usd) for key, usd in bill.aws_own.items()},
        "prices_of": chosen.month,
        "region": chosen.region,
        "recorded_hours": recorded_hours,
        "compacted": {"files_per_month": round(bill.compacted_files), "gb_per_month": round(bill.compacted_gb, 3)},
        "lines": _lines(bill),
        **_each(bill.total, tables),
    }
    print_bill(answer(document, as_json=as_json), document)
    return EXIT_OK


def _tables_of(catalogs: Iterable[str], known: LakeStatsStore) -> dict[str, int]:
    """How many tables of each catalog the deployment has seen.

    Raises:
        PolicyError: a catalog is not configured.
        StorageError: none of its tables was seen, or the state does not answer.
    """
    from icekeeper.catalogs.load import open_catalog

    tables = {}
    for name in catalogs:
        catalog = open_catalog(name)
        tables[catalog.name] = sum(1 for _ in known.of_catalog(catalog.name, catalog.warehouse))
        if not tables[catalog.name]:
            raise StorageError(
                f"no table of catalog {catalog.name} was seen by this deployment: set ICEKEEPER_STATE to the state "
                "table of the one that maintains it, or wait for its first detection"
            )
    return tables


def _each(total: float, tables: Mapping[str, int]) -> dict[str, Any]:
    """What a table costs, where catalogs were asked for."""
    if not tables:
        return {}
    return {"tables": dict(tables), "per_table": _cents(total / sum(tables.values()))}


def _given(prices: Sequence[str]) -> Mapping[str, str]:
    given = {}
    for text in prices:
        name, divided, value = text.partition("=")
        if not divided:
            raise PolicyError(f"--price {text}: write NAME=USD, such as lambda_gb_second=0.0000133334")
        given[name.strip()] = value.strip()
    return given


def _lines(bill: Bill) -> list[dict[str, Any]]:
    return [
        {"service": line.service, "what": line.what, "amount": round(line.amount, 3), "usd": _cents(line.usd)}
        for line in bill.lines
        if line.amount
    ]


def _cents(usd: float) -> float:
    return round(usd, 4)
