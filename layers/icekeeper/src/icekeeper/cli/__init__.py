"""The ``icekeeper`` command."""

from __future__ import annotations

from icekeeper.cli.app import main

__all__ = ["main"]
