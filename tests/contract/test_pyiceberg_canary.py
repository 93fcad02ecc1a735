"""Sings while PyIceberg has what icekeeper.pyiceberg_private takes from it beyond its public API."""

from __future__ import annotations

from icekeeper.pyiceberg_private.canary import missing_names


def test_pyiceberg_still_has_the_private_names_we_use() -> None:
    missing = missing_names()
    assert not missing, f"PyIceberg moved {', '.join(missing)}: adapt icekeeper/pyiceberg_private/, nothing else"
