"""Where the files of one table may be read, written, listed and deleted, and the guard that holds it
(rule: bound-every-table).

A table's metadata name its files, and whoever may write the table chooses these names.  So every table has a bound,
which the catalog that loaded it resolves.  It travels with the properties by which the table's files are reached, into
workers and executors too, and :class:`~icekeeper.storage.storage.Storage` asks it about every path before each use.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from icekeeper.errors import LocationRefused
from icekeeper.storage.paths import ComparedPath, compared, is_local, split_path

ALLOWED_PREFIXES = "ICEKEEPER_ALLOWED_PREFIXES"
"""The environment variable: ``CATALOG.NAMESPACE=PREFIX,PREFIX;…``, the first rule that fits a table holds."""
ALLOWED_LOCATIONS = "icekeeper.allowed-locations"
"""The FileIO property that carries a table's bound; never taken from a server or a table."""
# What separates prefixes and rules, stands for names, is stripped, or would end a line: a pasted rule must say what it
# shows.
_NOT_IN_A_RULE = re.compile(r"[,;{}'\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]|[^\S ]|^\s|\s\Z")
_DOTS = re.compile(r"(?:^|/)\.{1,2}(?:/|\Z)")
# Of a table with more, the next refusal names the others.
_MOST_SHOWN = 8
_FILE = re.compile(r"\.(avro|bin|json|orc|parquet|puffin|stats)\Z")
_METADATA_FILE = re.compile(r"/metadata/[^/]*\.metadata\.json\Z")
_PARTITION = re.compile(r"/[^/=]+=[^/]*\Z")
# As Iceberg's ObjectStoreLocationProvider makes them.
_HASH = re.compile(r"(?:/[01]{4}){3}/[01]{8}\Z")


@dataclass(frozen=True, slots=True)
class AllowedLocations:
    """The bound of one table."""

    prefixes: tuple[str, ...]
    """Folders and buckets; everything below one of them is allowed.  Empty: nothing is."""
    from_operator: bool
    """Whether a rule of :data:`ALLOWED_PREFIXES` says so; else it is the default."""
    subject: str = "*"
    """What a rule for this table's namespace begins with, ``CATALOG.NAMESPACE``; empty: none fits it alone."""
    rules: str = ""
    """The setting as the catalog was opened with it."""
    why_none: str = ""
    """Why nothing is allowed."""

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> AllowedLocations:
        """The bound that FileIO properties carry; :data:`ANYWHERE` where they carry none, as the operator's own do."""
        carried = properties.get(ALLOWED_LOCATIONS)
        if carried is None:
            return ANYWHERE
        prefixes, *others = json.loads(carried)
        return cls(tuple(prefixes), *others)

    def put_into(self, properties: Mapping[str, str]) -> dict[str, str]:
        """The properties with this bound in place of any other."""
        carried = [self.prefixes, self.from_operator, self.subject, self.rules, self.why_none]
        return {**properties, ALLOWED_LOCATIONS: json.dumps(carried)}

    def allows(self, path: str) -> bool:
        """Whether a file or folder is inside: of local ones, where they really are, behind all symbolic links.

        Nothing is decoded.  In an object store ``.`` and ``..`` are never inside; a local path is taken as it is
        opened, without them.
        """
        if self is ANYWHERE:
            return True
        if isinstance(path, ComparedPath):
            inner = path
        else:
            inner = compared(os.path.abspath(split_path(path).key) if is_local(path) else path)
        return not inner.has_dots and any(_holds(_outer(prefix), inner) for prefix in self.prefixes)

    def require(self, paths: Iterable[str]) -> None:
        """Refuse work on files or folders outside.

        Raises:
            LocationRefused: names the first one, and the rule that admits them all.
        """
        if self is ANYWHERE:
            return
        outside = [path for path in paths if not self.allows(path)]
        if outside:
            raise LocationRefused(self._refusal(outside))

    def require_real(self, real: str, spelled: str) -> None:
        """Refuse a local path by the real one, in which no link is left; nothing is looked up any more.

        Raises:
            LocationRefused: names the path as it is spelled.
        """
        inner = compared(real, is_plain=True)
        if not any(_holds(_outer(prefix), inner) for prefix in self.prefixes):
            raise LocationRefused(self._refusal([spelled]))

    def _refusal(self, outside: list[str]) -> str:
        if self.why_none:
            return f"{outside[0]} is not touched: {self.why_none}"
        where = " and ".join(self.prefixes) or "the store of its catalog"
        whose = (
            f"{ALLOWED_PREFIXES} allows this table's files"
            if self.from_operator
            else f"a table of its catalog may have files unless {ALLOWED_PREFIXES} says more"
        )
        return f"{outside[0]} lies outside {where}, where {whose}; nothing was touched; {self._advice(outside)}"

    def _advice(self, outside: list[str]) -> str:
        folders: list[str] = []
        for folder in sorted(set(map(_folder, outside)), key=lambda one: (len(one), one)):
            if len(folders) < _MOST_SHOWN and not any(_holds(compared(outer), compared(folder)) for outer in folders):
                folders.append(folder)
        if any(_DOTS.search(folder) for folder in folders):
            return "no rule can admit it, because it has a folder '.' or '..'"
        # A default is made of a table's bucket, which is the table's to name.
        if not self.subject or any(_NOT_IN_A_RULE.search(one) for one in (*folders, *self.prefixes)):
            return (
                f"because of the characters in its name, its bucket's or its namespace's no rule of {ALLOWED_PREFIXES} "
                "names it alone; if it is this table's own, one of a folder above it or of the whole catalog admits it"
            )
        mine = f"{self.subject}={','.join((*self.prefixes, *folders))}"
        others = (rule.strip() for rule in self.rules.split(";"))
        rules = (mine, *(rule for rule in others if rule and rule.partition("=")[0].rstrip() != self.subject))
        return f"if it is this table's own, set {ALLOWED_PREFIXES}='{';'.join(rules)}'"


ANYWHERE = AllowedLocations(("",), True)
"""No bound: the operator's own files, such as the policy file and the control bucket."""


@lru_cache(maxsize=1024)
def _remote(prefix: str) -> ComparedPath:
    return compared(prefix)


def _outer(prefix: str) -> ComparedPath:
    """What a prefix names now; a local one may be reached by links."""
    return compared(prefix) if is_local(prefix) else _remote(prefix)


def _holds(outer: ComparedPath, inner: ComparedPath) -> bool:
    root = outer.key.rstrip("/")
    return inner.authority == outer.authority and (
        inner.key.rstrip("/") == root or inner.key.startswith(f"{root}/" if root or not inner.key[:1] else "")
    )


def _folder(path: str) -> str:
    """What a rule names to admit a path: its folder if it is a file, without those of partition and hash.

    Of a table's metadata file it is what is most likely the table's location, unless that is a whole store.
    """
    table = _METADATA_FILE.sub("", path)
    if table != path and split_path(table).key.strip("/"):
        return table
    folder = path.rpartition("/")[0] if _FILE.search(path) else path.rstrip("/")
    while found := _PARTITION.search(folder):
        folder = folder[: found.start()]
    return _HASH.sub("", folder)
