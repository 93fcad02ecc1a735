r"""Text as people and readers of logs may see it: what a terminal, a browser or a log would act on is spelled out.

Names, paths, properties and the messages that quote them come from whoever may write a table.  Raw, they clear a screen
(ESC, C1), show another text than they hold (bidi marks, zero-width characters) or begin a line that looks like ours
(line breaks).  So text is escaped where it leaves for people: the command's console and JSON, log lines, the report
page, metric dimensions (rule 285).  Everywhere else, and for whoever parses the JSON, it stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["escaped", "escaped_document", "escaped_lines", "printable_json"]

_INDENT = "    "


def escaped(text: str) -> str:
    r"""One line of printable characters: all others are spelled as Python does, ``\n``, ``\x1b`` and ``\u202e``."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def escaped_lines(text: str) -> str:
    """As :func:`escaped`, but lines, as those of a traceback, stay lines: all but the first are indented."""
    return f"\n{_INDENT}".join(map(escaped, text.split("\n")))


def escaped_document(document: Any) -> Any:
    """A JSON document whose texts are all :func:`escaped`, keys too; numbers and the rest stay."""
    if isinstance(document, str):
        return escaped(document)
    if isinstance(document, Mapping):
        return {escaped_document(key): escaped_document(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [escaped_document(value) for value in document]
    return document


def printable_json(text: str) -> str:
    r"""The same JSON document in printable characters and line breaks; a parser reads what it would have read before.

    Others stand in strings only, where JSON spells any character as ``\u202e``.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one == "\n" else json.dumps(one)[1:-1] for one in text)
