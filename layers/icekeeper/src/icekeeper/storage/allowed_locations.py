"""The bound of a table: where its files may be read, written, listed and deleted (rule: bound-every-table).

A table's metadata name its files, and anybody who may write to the table can choose these names.  So every table has a
bound, which the catalog that loads it resolves.  The FileIO properties of the table contain the bound, even in workers
and executors, and :class:`~icekeeper.storage.storage.Storage` checks every path before each use.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import filterfalse

from icekeeper.errors import LocationRefused
from icekeeper.storage.paths import (
    LOCAL_SCHEMES,
    LOCAL_STORE,
    ComparedPath,
    compared,
    real_folder,
    real_path,
    split_path,
)

ALLOWED_PREFIXES = "ICEKEEPER_ALLOWED_PREFIXES"
"""The environment variable: ``CATALOG.NAMESPACE=PREFIX,PREFIX;…``; the first rule that fits a table applies."""
ALLOWED_LOCATIONS = "icekeeper.allowed-locations"
"""The FileIO property that contains a table's bound; never taken from a server or a table."""
# Separators of prefixes and rules, placeholders, and characters that are stripped, hidden, or end a line: a rule that a
# person copies must mean what the person sees.
_NOT_IN_A_RULE = re.compile(r"[,;{}'\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]|[^\S ]|^\s|\s\Z")
_DOTS = re.compile(r"(?:^|/)\.{1,2}(?:/|\Z)")
# A refusal names at most so many folders; the next refusal names the others.
_MOST_SHOWN = 8
_FILE = re.compile(r"\.(avro|bin|json|orc|parquet|puffin|stats)\Z")
_METADATA_FILE = re.compile(r"/metadata/[^/]*\.metadata\.json\Z")
_PARTITION = re.compile(r"/[^/=]+=[^/]*\Z")
# As in Iceberg's ObjectStoreLocationProvider.
_HASH = re.compile(r"(?:/[01]{4}){3}/[01]{8}\Z")


@dataclass(frozen=True, slots=True)
class AllowedLocations:
    """The bound of a table."""

    prefixes: tuple[str, ...]
    """Folders and buckets below which everything is allowed.  Empty: nothing is allowed."""
    from_operator: bool
    """Whether a rule of :data:`ALLOWED_PREFIXES` applies; otherwise the prefixes are the default."""
    subject: str = "*"
    """The beginning of a rule for this table's namespace, ``CATALOG.NAMESPACE``; empty: no rule fits only this
    namespace."""
    rules: str = ""
    """The setting when the catalog was opened."""
    why_none: str = ""
    """Why nothing is allowed."""

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> AllowedLocations:
        """The bound in FileIO properties; :data:`ANYWHERE` if they contain none, like the operator's own properties."""
        carried = properties.get(ALLOWED_LOCATIONS)
        if carried is None:
            return ANYWHERE
        prefixes, *others = json.loads(carried)
        return cls(tuple(prefixes), *others)

    def put_into(self, properties: Mapping[str, str]) -> dict[str, str]:
        """The properties with this bound in place of any other bound."""
        carried = [self.prefixes, self.from_operator, self.subject, self.rules, self.why_none]
        return {**properties, ALLOWED_LOCATIONS: json.dumps(carried)}

    def allows(self, path: str) -> bool:
        """Whether a file or folder is inside; local paths are compared as real paths, with all symbolic links resolved.

        Nothing is decoded.  In an object store a path with ``.`` or ``..`` is never inside; in a local path they are
        resolved, as when the file is opened.
        """
        if self is ANYWHERE:
            return True
        if isinstance(path, ComparedPath):
            return not path.has_dots and _is_inside(path.authority, path.key, self.prefixes)
        parts = split_path(path)
        if parts.scheme in LOCAL_SCHEMES:
            return self.allows_real(real_path(os.path.abspath(parts.plain_key)))
        return not parts.has_dots and _is_inside(parts.store, parts.key, self.prefixes)

    def allows_real(self, real: str) -> bool:
        """Like :meth:`allows`, for the real path of a local file or folder, which is not resolved again."""
        return _is_inside(LOCAL_STORE, real, self.prefixes)

    def require(self, paths: Iterable[str]) -> None:
        """Check that all these files or folders are inside.

        Raises:
            LocationRefused: the message names the first path outside, and a rule that admits all paths.
        """
        if self is ANYWHERE:
            return
        outside = list(filterfalse(self.allows, paths))
        if outside:
            raise self.refusal(outside)

    def refusal(self, outside: list[str]) -> LocationRefused:
        """The error that names the first of these paths, and a rule that admits all of them."""
        if self.why_none:
            return LocationRefused(f"{outside[0]} was not accessed: {self.why_none}")
        where = " and ".join(self.prefixes) or "the store of its catalog"
        whose = (
            f"{ALLOWED_PREFIXES} allows this table's files"
            if self.from_operator
            else f"a table of its catalog may have files unless {ALLOWED_PREFIXES} allows more"
        )
        return LocationRefused(
            f"{outside[0]} is outside {where}, where {whose}; nothing was accessed; {self._advice(outside)}"
        )

    def _advice(self, outside: list[str]) -> str:
        folders: list[str] = []
        for folder in sorted(set(map(_folder, outside)), key=lambda place: (len(place), place)):
            if len(folders) == _MOST_SHOWN:
                break
            place = compared(folder)
            if not _is_inside(place.authority, place.key, tuple(folders)):
                folders.append(folder)
        if any(_DOTS.search(folder) for folder in folders):
            return "no rule can admit it, because it has a folder '.' or '..'"
        # Default prefixes may contain the bucket's name, which the table's metadata choose.
        if not self.subject or any(_NOT_IN_A_RULE.search(folder) for folder in (*folders, *self.prefixes)):
            return (
                f"because of characters in the names of the file, its bucket or its namespace, no rule of "
                f"{ALLOWED_PREFIXES} can name only this file; if it is this table's own, a rule for a folder above it "
                "or for the whole catalog admits it"
            )
        mine = f"{self.subject}={','.join((*self.prefixes, *folders))}"
        others = (rule.strip() for rule in self.rules.split(";"))
        rules = (mine, *(rule for rule in others if rule and rule.partition("=")[0].rstrip() != self.subject))
        return f"if it is this table's own, set {ALLOWED_PREFIXES}='{';'.join(rules)}'"


ANYWHERE = AllowedLocations(("",), True)
"""No bound, for the operator's own files, such as the policy file and the control bucket."""


def _is_inside(store: str, key: str, prefixes: tuple[str, ...]) -> bool:
    """Whether the key is the key of a prefix or is below it: ``t`` contains ``t/f``, not ``t2``."""
    for outer, root in _split(prefixes):
        if outer != store:
            continue
        if outer == LOCAL_STORE and root:  # its links may change
            root = real_folder(root)
        root = root.rstrip("/")
        if not root or f"{key}/".startswith(f"{root}/"):
            return True
    return False


@lru_cache(maxsize=1024)
def _split(prefixes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Store and key of each prefix."""
    split = map(split_path, prefixes)
    return [(place.store, place.plain_key if place.store == LOCAL_STORE else place.key) for place in split]


def _folder(path: str) -> str:
    """The folder that a rule must name to admit a path: without partition and hash folders, and without a file name.

    For a metadata file this is probably the table's location, unless that would be a whole store.
    """
    table = _METADATA_FILE.sub("", path)
    if table != path and split_path(table).key.strip("/"):
        return table
    folder = path.rpartition("/")[0] if _FILE.search(path) else path.rstrip("/")
    while found := _PARTITION.search(folder):
        folder = folder[: found.start()]
    return _HASH.sub("", folder)
