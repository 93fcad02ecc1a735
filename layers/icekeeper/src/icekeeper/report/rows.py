"""Columns for people: aligned, within the width of a terminal, and never broken where a program reads them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["print_policy", "print_rows"]

_GAP = 2
# A last column that would be narrower begins on a line of its own.
_NARROWEST = 30
_WIDEST = 200
_INDENT = 4


def print_rows(console: Console, rows: Sequence[Sequence[Text]]) -> None:
    """Print aligned columns; on a terminal the last one is continued below itself, between words.

    Elsewhere it is never wrapped, and a word, such as a path, nowhere, so that it can be copied.  The cells are Text
    objects, because brackets in a path or name must not be taken for markup.
    """
    # A single name of a megabyte must not fill the lines of all others with blanks.
    widths = [min(_WIDEST, max(cell.cell_len for cell in column)) for column in zip(*rows, strict=True)][:-1]
    indent = sum(widths) + _GAP * len(widths)
    room = console.width - indent
    for row in rows:
        for cell, width in zip(row[:-1], widths, strict=True):
            cell.pad_right(max(0, width - cell.cell_len))
        first, last = Text("  ").join(row[:-1]), row[-1]
        if not console.is_terminal or last.cell_len <= room:
            line = Text("  ").join(row)
            line.rstrip()
            console.print(line, soft_wrap=True)
        elif room >= _NARROWEST:
            _print_below(console, last, indent, Text("  ").join([*row[:-1], Text()]))
        else:
            console.print(first, soft_wrap=True)
            _print_below(console, last, _INDENT, Text(" " * _INDENT))


def _print_below(console: Console, text: Text, indent: int, begin: Text) -> None:
    """Print a text in lines of the console's width, all but the first indented; only a longer word exceeds it.

    The lines are printed one by one: a console of the command escapes line breaks in a text (rule 285).
    """
    for line in textwrap.wrap(text.plain, console.width - indent, break_long_words=False, break_on_hyphens=False):
        console.print(begin + Text(line, text.style), soft_wrap=True)
        begin = Text(" " * indent)


def print_policy(console: Console, rows: Iterable[Sequence[str]], ignored: Iterable[str] = ()) -> None:
    """Print rows of ``(key, value, source, meaning)``, then sentences about settings of the table that do not count.

    Values that are no defaults are bold.

    One line a key where programs read; on a terminal the meaning stands below its key.
    """
    if console.is_terminal:
        for key, value, source, meaning in rows:
            is_default = source == "default"
            setting = Text(f"{key} = {value.replace(',', ', ')}", "" if is_default else "bold")
            console.print(Text.assemble(setting, (f"  ({source})", "dim" if is_default else "bold")))
            _print_below(console, Text(meaning, "dim"), _INDENT, Text(" " * _INDENT))
        for sentence in ignored:
            console.print(Text(sentence, "bold"))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("key", no_wrap=True)
    for heading in ("value", "source", "meaning"):
        table.add_column(heading, overflow="fold")
    for key, value, source, meaning in rows:
        style = "dim" if source == "default" else "bold"
        table.add_row(Text(key), Text(value, style=style), Text(source, style=style), Text(meaning))
    console.print(table)
    for sentence in ignored:
        console.print(Text(sentence), soft_wrap=True)
