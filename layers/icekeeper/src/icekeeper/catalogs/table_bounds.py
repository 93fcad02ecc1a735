"""The bound of each table of a catalog: a rule of the operator, else one made of the warehouse (rule 92) (rule 256)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from icekeeper.catalogs.kind import CatalogKind
from icekeeper.model import TableName
from icekeeper.policy.allowed_prefixes import NoPrefixes, allowed_prefixes, check_allowed_prefixes
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES, AllowedLocations
from icekeeper.storage.paths import LOCAL_SCHEMES, S3_SCHEMES, split_path

__all__ = ["TableBounds"]

_TABLE_BUCKETS = "arn:"
# Part of a pattern's or of the setting's own syntax.
_NOT_A_NAME = re.compile(r"[*?\[\];=,'\s\x00-\x1f\x7f-\x9f]")


class TableBounds:
    """Resolves where the tables of one catalog may have files."""

    def __init__(
        self, name: str, kind: CatalogKind, warehouse: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """``warehouse`` as configured, ``environment`` holds the rules: this process's own, unless given.

        Raises:
            PolicyError: the rules are malformed.
        """
        self._name, self._kind, self._warehouse = name, kind, warehouse.strip()
        self._rules = (os.environ if environment is None else environment).get(ALLOWED_PREFIXES, "")
        check_allowed_prefixes(self._rules)

    def of(self, table: TableName, metadata_location: str, home: str | None = None) -> AllowedLocations:
        """The bound of one table.

        Args:
            metadata_location: its metadata file.  Whoever wrote it may write there; the location that it names may be
                somebody else's.
            home: the table's location as the catalog's service knows it.
        """
        subject = self._subject(table.namespace)
        found = allowed_prefixes(self._rules, self._name, table.namespace)
        if isinstance(found, NoPrefixes):
            return AllowedLocations((), True, subject, self._rules, found.reason)
        if found is not None:
            return AllowedLocations(found, True, subject, self._rules)
        return AllowedLocations(self._default(metadata_location, home), False, subject, self._rules)

    def _subject(self, namespace: tuple[str, ...]) -> str:
        """What a rule for one namespace begins with; empty where it would fit others as well."""
        if not namespace or not all(namespace) or any(_NOT_A_NAME.search(level) or "." in level for level in namespace):
            return ""
        return f"{_NOT_A_NAME.sub('?', self._name).replace('.', '?')}.{'.'.join(namespace)}"

    def _default(self, metadata_location: str, home: str | None) -> tuple[str, ...]:
        warehouse, place = split_path(self._warehouse), split_path(metadata_location)
        is_url = "://" in self._warehouse
        is_path = self._warehouse.startswith(("/", "file:/")) or (self._kind is CatalogKind.SQL and self._warehouse)
        if self._kind is not CatalogKind.GLUE and (is_url or is_path):
            if warehouse.scheme in S3_SCHEMES or warehouse.scheme in LOCAL_SCHEMES:
                return (self._warehouse,)
            return (f"{place.scheme}://{place.authority}",) if place.scheme == warehouse.scheme else ()
        if place.scheme not in S3_SCHEMES or not place.authority:
            return ()
        if self._warehouse.startswith(_TABLE_BUCKETS) and self._kind is not CatalogKind.GLUE:
            return (home or metadata_location.rpartition("/")[0].removesuffix("/metadata"),)
        return (f"{place.scheme}://{place.authority}",)
