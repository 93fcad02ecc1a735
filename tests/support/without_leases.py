"""Passes that no lease keeps apart: what guards rows and files must hold even then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest import mock


@contextmanager
def without_leases() -> Iterator[None]:
    """While the block runs, every pass of this process believes that it holds its table's lease."""
    unguarded = SimpleNamespace(is_lost=False, require=lambda: None)
    with mock.patch("icekeeper.maintenance.run_pass.leased", return_value=nullcontext(unguarded)):
        yield
