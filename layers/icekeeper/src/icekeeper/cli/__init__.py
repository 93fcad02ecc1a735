"""The ``icekeeper`` command: arguments, exit codes, JSON and text."""

from __future__ import annotations

from icekeeper.cli.app import main

__all__ = ["main"]
