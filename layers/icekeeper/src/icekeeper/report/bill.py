"""Prints the bill of a month for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from icekeeper.report.rows import print_rows

__all__ = ["print_bill"]

_OWN_WORDS = {"s3_tables": "S3 Tables' own compaction", "glue_optimizers": "Glue's table optimizers (an estimate)"}


def print_bill(console: Console, bill: Mapping[str, Any]) -> None:
    """The document of ``cost --json``: each line, the total, and what AWS asks for merging the same files."""
    total = bill["per_month"]["total"]
    console.print(
        Text.assemble(
            (f"{total:,.2f} USD a month", "bold"),
            f", by {bill['recorded_hours']} recorded hour(s), prices of {bill['region']}, {bill['prices_of']}",
        )
    )
    print_rows(
        console,
        [(Text(f"  {line['what']}"), Text(f"{line['amount']:,.0f}"), _usd(line["usd"])) for line in bill["lines"]],
    )
    if "per_table" in bill:
        seen, catalogs = sum(bill["tables"].values()), ", ".join(bill["tables"])
        console.print(f"That is {bill['per_table']:,.4f} USD for each of {seen:,} table(s) of {catalogs}")
    compacted = bill["compacted"]
    console.print(
        f"The same {compacted['files_per_month']:,} files, {compacted['gb_per_month']:,.1f} GB a month, merged by AWS:"
    )
    print_rows(console, [(Text(f"  {words}"), _usd(bill["aws_own"][key])) for key, words in _OWN_WORDS.items()])


def _usd(usd: float) -> Text:
    return Text(f"{usd:,.2f} USD")
