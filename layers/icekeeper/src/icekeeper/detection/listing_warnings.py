"""What is wrong with the listing of a catalog that answered: pure rules (rule 141)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from icekeeper.detection.catalogs import ListedCatalog

__all__ = ["empty_catalogs", "listing_warnings"]


def empty_catalogs(listed: Iterable[ListedCatalog]) -> Sequence[str]:
    """The names of the catalogs that list no table, although somebody has configured them."""
    expected = (one for one in listed if one.tables is not None and not one.may_be_empty)
    return tuple(one.catalog.name for one in expected if not one.tables)


def listing_warnings(listed: Sequence[ListedCatalog]) -> Sequence[str]:
    """One sentence for each catalog that lists no table, or leaves some out because it may not list them."""
    empty = frozenset(empty_catalogs(listed))
    return tuple(
        one.left_out
        or f"catalog {one.catalog.name} lists no table: if it has any, a right to see them is missing, such as a grant"
        " of AWS Lake Formation"
        for one in listed
        if one.left_out or one.catalog.name in empty
    )
