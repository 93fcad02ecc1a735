"""Writes the table of rooms in docs/contributing/architecture.md, from the house plan and the rooms' docstrings.

``python docs/generate_rooms.py``; with ``--print`` the page goes to standard output, and the file stays as it is.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "layers" / "icekeeper" / "src" / "icekeeper"
PAGE = ROOT / "docs" / "contributing" / "architecture.md"
BEGIN, END = "<!-- rooms: docs/generate_rooms.py writes this table -->\n", "<!-- end of rooms -->"


def main() -> None:
    """Write the page, or print it."""
    text = PAGE.read_text()
    page = re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: BEGIN + _table() + END, text, flags=re.DOTALL)
    if "--print" in sys.argv[1:]:
        sys.stdout.write(page)
    else:
        PAGE.write_text(page)


def _table() -> str:
    sys.path.insert(0, str(ROOT / "tests"))
    from support.house_plan import ROOMS

    return "| room | what is in it |\n|---|---|\n" + "".join(map(_row, reversed(ROOMS)))


def _row(room: str) -> str:
    folder = PACKAGE / room
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    summary = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].replace("\n", " ")
    summary = re.sub(r" \((?:rule|platform)[^)]*\)", "", summary).replace("``", "`")
    name = f"{room}/" if folder.is_dir() else f"{room}.py"
    return f"| `{name}` | {summary} |\n"


if __name__ == "__main__":
    main()
