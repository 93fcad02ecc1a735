"""Times in the answers of AWS and of servers that speak like it."""

from __future__ import annotations

from datetime import UTC, datetime

from botocore.utils import parse_timestamp

__all__ = ["told_moment"]


def told_moment(text: str) -> datetime | None:
    """The moment that a text of an answer names, in UTC where it names no zone; ``None`` where it names no moment.

    botocore takes a time without a zone for one of this machine's zone, and fails over what is no time.
    """
    try:
        found: datetime = parse_timestamp(text)
    except (ValueError, OverflowError, RuntimeError):
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
