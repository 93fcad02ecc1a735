"""The file behind a SQLite address: asked for before a client, which would create it."""

from __future__ import annotations

import difflib
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import SQLAlchemyError

__all__ = ["why_no_database"]


def why_no_database(uri: str) -> str | None:
    """Why there is no database at an address, with the nearest name beside it; ``None`` where there may be one."""
    try:
        address = make_url(uri)
    except (SQLAlchemyError, ValueError):
        return None  # the client says what is wrong with it
    path = address.database or ""
    if address.get_backend_name() != "sqlite" or path in ("", ":memory:") or path.startswith("file:"):
        return None
    file = Path(path)
    if file.exists():
        return None
    if not file.parent.is_dir():
        return f"unable to open its file: there is no folder {file.parent}"
    beside = [entry.name for entry in file.parent.iterdir() if entry.is_file()]
    nearest = difflib.get_close_matches(file.name, beside, n=1)
    return f"unable to open {file}: there is no such file" + (f" (did you mean '{nearest[0]}'?)" if nearest else "")
