"""The lines of a Glue job as JSON, by the names that Powertools gives them in functions: one query finds both."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from icekeeper.text import escaped, escaped_document, escaped_lines, masked, masked_document

__all__ = ["JsonLines", "json_line", "lines_about"]

_here: ContextVar[Mapping[str, str]] = ContextVar("icekeeper_line_fields", default={})  # noqa: B039  # never changed
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def json_line(fields: Mapping[str, object]) -> str:
    """One line of a log: secrets are masked, and every text is escaped (rule 285), a traceback line by line."""
    told = {
        name: escaped_lines(value) if name == "exception" and isinstance(value, str) else escaped_document(value)
        for name, value in masked_document(fields).items()
    }
    return json.dumps(told, ensure_ascii=False, default=lambda other: escaped(masked(str(other))))


@contextmanager
def lines_about(**fields: str) -> Iterator[None]:
    """Add fields to the lines of this thread, and of those that it starts work in, inside of the block."""
    before = _here.set({**_here.get(), **fields})
    try:
        yield
    finally:
        _here.reset(before)


class JsonLines(logging.Formatter):
    """Formats log records as JSON; a field of the record itself (``extra``) wins over those of :meth:`about`."""

    def __init__(self) -> None:
        super().__init__()
        self._fields: dict[str, str] = {}

    def about(self, **fields: str) -> None:
        """Add fields to every further line."""
        self._fields.update(fields)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "level": record.levelname,
            "message": record.getMessage(),
            "timestamp": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "name": record.name,
            **self._fields,
            **_here.get(),
            **{name: value for name, value in vars(record).items() if name not in _OWN},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json_line(line)
