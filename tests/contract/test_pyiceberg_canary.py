"""Sings while PyIceberg has what icekeeper.pyiceberg_private takes from it beyond its public API."""

from __future__ import annotations

from icekeeper import pyiceberg_private


def test_pyiceberg_still_has_the_private_names_we_use() -> None:
    missing = pyiceberg_private.missing_names()
    assert not missing, f"PyIceberg moved {', '.join(missing)}: adapt icekeeper/pyiceberg_private.py, nothing else"
