"""Prints the figures of the code: ``python -m benchmarks.house [count] [calls] [cold] [--json] [--add TITLE]``.

``count`` reads files only; ``calls`` runs four commands; ``cold`` starts interpreters, 60 in all.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.house.calls import COMMANDS, call
from benchmarks.house.cold import measure_starts
from benchmarks.house.count import count_docs, count_source, count_tests, largest_rooms
from benchmarks.house.page import add_column, call_rows, count_rows, room_rows, start_rows, table

_ROOT = Path(__file__).resolve().parents[2]
_PARTS = ("count", "calls", "cold")


def _measured(parts: Sequence[str]) -> tuple[dict[str, str], dict[str, Any]]:
    """The rows of the table, and the same figures as a JSON document."""
    rows: dict[str, str] = {}
    document: dict[str, Any] = {}
    if "count" in parts:
        source, tests, docs = count_source(_ROOT), count_tests(_ROOT), count_docs(_ROOT)
        rooms = largest_rooms(_ROOT)
        rows |= dict(count_rows(source, tests, docs)) | dict(room_rows(rooms))
        document |= {"source": source, "tests": tests, "docs": docs, "rooms": [asdict(room) for room in rooms]}
    if "calls" in parts:
        called = {name: call(_ROOT, name) for name in COMMANDS}
        rows |= {label: value for name, one in called.items() for label, value in call_rows(name, one)}
        document["calls"] = {name: asdict(one) for name, one in called.items()}
    if "cold" in parts:
        (starts,) = measure_starts([_ROOT])
        rows |= dict(start_rows(starts))
        document["starts"] = {name: asdict(start) for name, start in starts.items()}
    return rows, document


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(_PARTS)}; all of them where none is named"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON document, which names every frame, too")
    parser.add_argument("--add", metavar="TITLE", help="write the figures into this column of docs/house.md")
    parser.add_argument(
        "--beside", metavar="CHECKOUT", type=Path, help="start the programs of both in turn, nothing else"
    )
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(_PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    if asked.beside is not None:
        here, there = measure_starts([_ROOT, asked.beside.resolve()])
        print(table({"there": dict(start_rows(there)), "here": dict(start_rows(here))}))
        return
    rows, document = _measured(asked.parts or _PARTS)
    if asked.add is not None:
        add_column(_ROOT / "docs" / "house.md", asked.add, rows)
    print(json.dumps(document, indent=1, ensure_ascii=False) if asked.json else table({asked.add or "now": rows}))


if __name__ == "__main__":
    _main()
