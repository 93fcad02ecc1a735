"""Paths: the names of files that a task writes, spellings of the same path, and whether a path is inside a location.

Tables to which several engines commit mix ``s3://`` with ``s3a://`` and ``file:/x`` with ``file:///x``.  Some writers
percent-encode partition values, others do not.  There are two questions about a path, and a wrong answer has different
costs (rule: any-spelling-protects):

* *Could something reference this file?*  :func:`normalise`, :func:`any_spelling`, :func:`may_be_under` and
  :class:`PathSet` answer yes too often rather than too seldom.  An S3 key may really contain ``%20`` or ``//``, so two
  objects can have the same normalised path: then a reference to either protects both, and less is deleted.
* *Is this certainly ours to delete?*  :func:`is_under` compares the literal path that would be deleted.  It ignores
  only differences that cannot denote another object.

Paths in object stores are compared as text, local paths as real paths, with all symbolic links resolved.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
import time
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from icekeeper.errors import StorageError

# Names of the files that a task writes.  Every attempt at a task has its own files (rule: attempts-never-share-a-file).
#
# An engine starts a task again if its worker seems dead.  If the worker is only slow, two attempts run in parallel, and
# the slow attempt may fail after the other's files were committed.  So the attempt's number is part of the name,
# ``STEM-a2.parquet``, and no attempt overwrites or removes the files of another.  ``icekeeper.engines`` limits the
# number of attempts, and a single record, ``STEM-a[0-3].parquet``, names the files of all attempts.  So the files of a
# dead job can be deleted without a listing.

# Spark's default of spark.task.maxFailures.
ATTEMPTS_PER_RUN = 4
RUNS = 2
"""How often an engine runs tasks that read other tasks' output; within each run, attempts count from 0."""
MAX_ATTEMPTS = RUNS * ATTEMPTS_PER_RUN
_ANYWHERE = "/**/"
# These follow the stem.  Because a number or a range follows it, no stem is a prefix of another stem's files.
_OF_ATTEMPT = re.compile(r"-a(\d+)\.[A-Za-z0-9]+\Z")
_OF_ALL = re.compile(r"-a\[0-(\d+)\]\.([A-Za-z0-9]+)\Z")


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that an attempt at a task is going to write."""

    stem: str
    """Its path without attempt and ending; ``FOLDER/**/NAME`` if only the task knows the folder below FOLDER."""
    ending: str
    attempts: int = ATTEMPTS_PER_RUN

    @classmethod
    def anywhere_below(cls, folder: str, name: str, ending: str) -> PlannedFile:
        """A file with a unique name, in a folder below ``folder`` that is not known yet."""
        return cls(f"{folder}{_ANYWHERE}{name}", ending)

    @property
    def record(self) -> str:
        """The names of the files of all attempts in a single text, which is recorded before the work begins."""
        return f"{self.stem}-a[0-{self.attempts - 1}].{self.ending}"

    @property
    def paths(self) -> Sequence[str]:
        """The paths of all attempts; empty if the folder is not known."""
        return () if _ANYWHERE in self.stem else [self.path(attempt) for attempt in range(self.attempts)]

    def path(self, attempt: int) -> str:
        """The file of an attempt.

        Raises:
            StorageError: there were more attempts than the record names; nothing must be written.
        """
        if attempt >= self.attempts:
            raise StorageError(
                f"the task that writes {self.stem} was started more than {self.attempts} times, and files of further "
                "attempts would never be removed; find out why workers die, then run the pass again"
            )
        return f"{self.stem}-a{attempt}.{self.ending}"


def planned_file(record: str) -> PlannedFile | None:
    """Parse a record; ``None`` if it is a plain path."""
    found = _OF_ALL.search(record)
    return None if found is None else PlannedFile(record[: found.start()], found[2], int(found[1]) + 1)


def stem_of(path: str) -> str | None:
    """The stem of a file that an attempt wrote, whatever its number and ending; ``None`` for any other name."""
    found = _OF_ATTEMPT.search(path)
    return None if found is None else path[: found.start()]


def is_repeated(paths: Iterable[str]) -> bool:
    """Whether a second or later attempt wrote any of these files, so that earlier attempts may have left files."""
    return any(found is not None and int(found[1]) > 0 for found in map(_OF_ATTEMPT.search, paths))


# Real paths of local files and folders, with all symbolic links resolved.
#
# The catalog may name a warehouse by a link and the metadata may name it by its real folder, or the other way round.
# Callers resolve millions of paths in few folders.  So real folders are remembered for a second, and only the last name
# is checked each time.
# Links do not change during a comparison; a process that runs for days must notice a change.
_REMEMBERED_S = 1.0
_MOST_FOLDERS = 100_000


class _RealPaths:
    """Remembers the real paths of folders.  Threads may share it: at worst a folder is looked up twice."""

    def __init__(self) -> None:
        self._folders: dict[str, str] = {}
        self._until_s = 0.0

    def of(self, path: str) -> str:
        """The absolute path of a local file or folder without any symbolic link in it.

        A link is replaced by its target, so that a reference to either protects both.  A part that does not exist is
        unchanged, and so is text that cannot be a path.
        """
        folder, _, name = path.rpartition("/")
        try:
            # The meaning of a relative path changes with the working directory.
            if not path.startswith("/") or name in ("", ".", ".."):
                return os.path.realpath(path)
            real = f"{self.of_folder(folder)}/{name}"
            try:
                is_link = stat.S_ISLNK(os.lstat(real).st_mode)
            except OSError:  # it does not exist, or may not be read
                is_link = False
            return os.path.realpath(real) if is_link else real
        except (OSError, ValueError):  # no working directory, or a character that no path may contain
            return os.path.normpath(path)

    def of_folder(self, folder: str) -> str:
        """Like :meth:`of`, without a slash at the end; changed links are noticed within a second; "" becomes ``/``."""
        now_s = time.monotonic()
        if now_s >= self._until_s or len(self._folders) >= _MOST_FOLDERS:
            self._folders, self._until_s = {}, now_s + _REMEMBERED_S
        found = self._folders.get(folder)
        if found is None:
            above = folder.rpartition("/")[0]
            is_known = above in self._folders or above.rpartition("/")[0] in self._folders
            is_below = folder.startswith("/") and is_known
            try:
                # Below a known folder, only the last one or two names can be links.
                found = (self.of(folder) if is_below else os.path.realpath(folder or "/")).rstrip("/")
            except (OSError, ValueError):  # a character that no path may hold
                found = os.path.normpath(folder)
            if not folder or folder.startswith("/"):  # the meaning of a relative path changes
                self._folders[folder] = found
        return found


_real_paths = _RealPaths()
real_path = _real_paths.of
real_folder = _real_paths.of_folder


S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
LOCAL_SCHEMES = ("", "file")
LOCAL_STORE = "file://"
"""Used as scheme and bucket of all local paths."""
# RFC 3986, section 3.1; "file:/x" has one slash, so the slashes are not part of it.
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):(?=/)")
_SLASHES = re.compile(r"/{2,}")
# Already in normal form, as most paths are: nothing to decode, no empty, ``.`` or ``..`` segment.
_NORMAL = re.compile(r"s3:/(?:/(?!\.{1,2}(?:/|\Z))[^/%]+)+")
# No writer encodes so often.  Without a limit, links whose names decode to each other would be followed forever.
_MOST_LAYERS = 100


class SplitPath(NamedTuple):
    """The parts of a path, not decoded."""

    scheme: str
    """Lower case; empty for a bare local path."""
    authority: str
    """Bucket or host; empty for local files."""
    key: str
    """The object key without a leading slash, or the local path."""

    @property
    def store(self) -> str:
        """Scheme and bucket or host, with ``s3`` for ``s3a`` and ``s3n``: ``s3://bucket``; ``file://`` if local."""
        if self.scheme in LOCAL_SCHEMES:
            return LOCAL_STORE
        return f"{'s3' if self.scheme in S3_SCHEMES else self.scheme}://{self.authority}"

    @property
    def plain_key(self) -> str:
        """The key without repeated slashes, which have no meaning in a local path."""
        return _SLASHES.sub("/", self.key)

    @property
    def has_dots(self) -> bool:
        """Whether a part of the key is ``.`` or ``..``."""
        return not {".", ".."}.isdisjoint(self.key.split("/"))


def split_path(path: str) -> SplitPath:
    """Split a path literally: ``?``, ``#`` and ``%`` are ordinary characters, as in object stores."""
    match = _SCHEME.match(path)
    if match is None:
        return SplitPath("", "", path)
    scheme, rest = match.group(1).lower(), path[match.end() :]
    if not rest.startswith("//"):
        return SplitPath(scheme, "", rest)
    host, slash, key = rest[2:].partition("/")
    if scheme != "file":
        return SplitPath(scheme, host, key)
    # PyIceberg reads "file://./warehouse" as a path relative to the working directory.
    return SplitPath(scheme, "", slash + key if host in ("", "localhost") else f"{host}{slash}{key}")


def is_local(path: str) -> bool:
    """Whether the path is on this machine: ``/x``, ``file:/x``, ``file:///x`` or relative."""
    return split_path(path).scheme in LOCAL_SCHEMES


def is_s3(path: str) -> bool:
    """Whether the path names an object in S3."""
    return split_path(path).scheme in S3_SCHEMES


def normalise(path: str) -> str:
    """The key by which paths are compared; it is never used to read or delete.

    ``s3``, ``s3a`` and ``s3n`` are the same scheme.  All percent-encoding is decoded; repeated and trailing slashes are
    removed.  Local spellings become absolute paths ``/x`` without ``.``, ``..`` and symbolic links.  Idempotent, except
    for links whose own names are percent-encoded.
    """
    if isinstance(path, ComparedPath):
        return path.normal
    if is_tidy(path):
        return _decoded(real_path(path))
    return path if _NORMAL.fullmatch(path) else _decoded(_tidied(path))


def is_tidy(path: str) -> bool:
    """Whether a path is local and may be a real path by its spelling, like most local paths."""
    return path.startswith("/") and not ("//" in path or "/." in path or "%" in path or path.endswith("/"))


def _decoded(path: str) -> str:
    for _ in range(_MOST_LAYERS):
        # Links are followed before each decoding, because a link may really be named "%41".
        if "%" not in path or (decoded := unquote(path)) == path:
            break
        path = _tidied(decoded)
    return path


def _tidied(path: str) -> str:
    parts = split_path(path)
    key = parts.plain_key
    if parts.scheme in LOCAL_SCHEMES:
        return real_path(key) if key else ""
    key = key.strip("/")
    return f"{parts.store}/{key}" if key else parts.store


def authority(path: str) -> str:
    """See :attr:`SplitPath.store`."""
    return path.authority if isinstance(path, ComparedPath) else split_path(path).store


class ComparedPath(str):
    """A path, and the file that it named when :func:`compared` resolved it.

    Functions here accept it in place of a path and do not access the file system again.  A link may appear at any time,
    so do not store such a path.
    """

    __slots__ = ("authority", "has_dots", "is_plain", "key", "normal")

    authority: str
    key: str
    """What a deletion would actually remove: the key in the bucket, or the real path with all links resolved."""
    has_dots: bool
    """Whether a part of it is ``.`` or ``..``."""
    is_plain: bool
    """Whether the text is the real path, without a link in it."""
    normal: str
    """As :func:`normalise`."""


def compared(path: str, *, is_plain: bool = False) -> ComparedPath:
    """Find out what a path names now; with ``is_plain``, trust the text and do not access the file system."""
    if isinstance(path, ComparedPath):
        return path
    found = ComparedPath(path)
    if is_tidy(path):
        found.authority, found.has_dots = LOCAL_STORE, False
        key = found.key = path if is_plain else real_path(path)
        found.is_plain, found.normal = key == path, _decoded(key)
        return found
    if _NORMAL.fullmatch(path):
        bucket, _, found.key = path[len("s3://") :].partition("/")
        found.authority, found.has_dots, found.is_plain, found.normal = f"s3://{bucket}", False, True, path
        return found
    parts = split_path(path)
    found.authority, found.has_dots = parts.store, parts.has_dots
    if parts.scheme in LOCAL_SCHEMES:
        key = parts.plain_key
        found.key = key if is_plain or not key else real_path(key)
        found.is_plain, found.normal = found.key == key, _decoded(found.key)
    else:
        found.key, found.is_plain, found.normal = parts.key, True, normalise(path)
    return found


def is_under(path: str, location: str) -> bool:
    """Whether a file is certainly inside a location; checked before each deletion.

    Nothing is decoded, because the literal path is deleted.  A path with ``.`` or ``..`` is never inside.  Repeated
    slashes are ignored only in local paths: in an object store they denote another object.  Local files are compared by
    real paths: if a symbolic link on the path leads out of the location, the file is outside.
    """
    inner, outer = compared(path), compared(location)
    if inner.authority != outer.authority or inner.has_dots or not inner.key or not location:
        return False
    root = outer.key.rstrip("/")
    if not root and inner.authority != LOCAL_STORE:
        return True
    return inner.key.startswith(f"{root}/") and len(inner.key) > len(root) + 1


def leads_out(path: str, location: str) -> bool:
    """Whether a local path is inside a location by its spelling, but outside because of a symbolic link."""
    if not is_local(path) or not is_local(location):
        return False
    inner, outer = (split_path(spelled).plain_key.rstrip("/") for spelled in (path, location))
    return inner.startswith(f"{outer}/") and not is_under(path, location)


# Listing a folder takes longer the more entries it has; so the first files of a folder are checked one by one instead.
_ASKED_FIRST = 8


class FolderNames:
    """Normalises millions of paths in few folders, for a single comparison, during which no link is expected to change.

    :func:`normalise` checks every file.  This class lists a folder of many files once, to find all links in it.
    """

    def __init__(self, *, of_listed: bool = False) -> None:
        """``of_listed``: all paths come from a listing, which contains no links, so no folder is listed again."""
        self._of_listed = of_listed
        self._asked: dict[str, int] = {}
        self._known: dict[str, tuple[str, Collection[str]] | None] = {}
        self._plain: set[str] = set()
        """Folders without links that are in normal form, each with a slash and the first character of a name."""

    def spellings(self, paths: Sequence[str]) -> list[str]:
        """The :func:`any_spelling` of each path."""
        together = "".join(paths)
        if not together.isascii() or "%" in together or "\\" in together:
            return [merged_spelling(self.normal(path)) for path in paths]
        plain = self._plain
        return [path if path[: path.rfind("/") + 2] in plain else self._spelling(path) for path in paths]

    def is_plain(self, path: str) -> bool:
        """Whether a local path certainly is its real path; false for the first paths of a folder."""
        is_plain = path[: path.rfind("/") + 2] in self._plain
        if not is_plain and is_tidy(path):
            self._spelling(path)
        return is_plain

    def _spelling(self, path: str) -> str:
        """Like :func:`any_spelling`, for a path without encoded characters; later paths like it are plain."""
        normal = self.normal(path)
        folder, _, name = path.rpartition("/")
        known = self._known.get(folder)
        if known is not None and known[0] == f"{folder}/" and not known[1] and name and not name.startswith("."):
            if len(self._plain) >= _MOST_FOLDERS:
                self._plain.clear()
            self._plain.add(path[: len(folder) + 2])
        return merged_spelling(normal)

    def normal(self, path: str) -> str:
        """The same result as :func:`normalise`."""
        if isinstance(path, ComparedPath):
            return path.normal
        folder, _, name = path.rpartition("/")
        try:
            known = self._known[folder]
        except KeyError:
            known = self._look(folder)
        if known is None or "%" in name or name.startswith(".") or not name or name in known[1]:
            return normalise(path)
        return known[0] + name

    def _look(self, folder: str) -> tuple[str, Collection[str]] | None:
        """The normalised folder with a slash, and the names of the links in it; ``None``: each file must be checked."""
        if is_local(folder) and not self._of_listed:
            if len(self._asked) >= _MOST_FOLDERS:
                self._asked.clear()
            asked = self._asked[folder] = self._asked.get(folder, 0) + 1
            if asked <= _ASKED_FIRST:
                return None
        if len(self._known) >= _MOST_FOLDERS:
            self._known.clear()
        known = self._known[folder] = _folder(folder, may_hold_links=not self._of_listed)
        return known


def _folder(folder: str, *, may_hold_links: bool) -> tuple[str, Collection[str]] | None:
    # If the folder contains an encoded character or a dot, its normal form may depend on the file's name.
    if not folder or "%" in folder or "/." in folder:
        return None
    if not is_local(folder):
        return normalise(f"{folder}/x")[:-1], ()
    if not folder.startswith("/") or "//" in folder or folder.endswith("/"):
        return None
    real = real_path(f"{folder}/.").rstrip("/")
    if "%" in real:
        return None
    if not may_hold_links:
        return f"{real}/", ()
    try:
        with os.scandir(real or "/") as entries:
            return f"{real}/", frozenset(entry.name for entry in filter(os.DirEntry.is_symlink, entries))
    except FileNotFoundError:  # a missing folder contains no link
        return f"{real}/", ()
    except (OSError, ValueError):
        return None


def any_spelling(path: str) -> str:
    """The same text for all spellings of a path: the key by which references are compared with files to delete."""
    return merged_spelling(normalise(path))


def merged_spelling(normal: str) -> str:
    """The same text for spellings of a normalised path that denote one object in some stores and two in others.

    A reference in either spelling protects both (rule: any-spelling-protects).  SeaweedFS treats a backslash as a
    slash; macOS treats a letter with an accent as a letter and an accent (Unicode Standard Annex 15); Hadoop resolves
    ``.`` and ``..`` (RFC 3986, 5.2.4).  Only references are compared in this way, not keys of the state store.
    """
    scheme, separator, rest = normal.partition("://")
    if separator and ("\\" in rest or "/." in rest):
        host, _, key = rest.partition("/")
        key = posixpath.normpath(f"/{key}".replace("\\", "/")).lstrip("/")
        normal = f"{scheme}://{host}/{key}"
    return normal if normal.isascii() else unicodedata.normalize("NFC", normal)


def may_be_under(path: str, location: str) -> bool:
    """Whether any reader or store could take the path, in any spelling, for the location or for a path inside it
    (rule: any-spelling-protects)."""
    return any(
        inner == outer or inner.startswith(outer if outer.endswith("/") else f"{outer}/")
        for inner in _spellings(path)
        for outer in _spellings(location)
    )


def _spellings(path: str) -> Iterable[str]:
    """The normalised path and, if it differs, the merged spelling."""
    normal = normalise(path)
    merged = merged_spelling(normal)
    return (normal,) if merged == normal else (normal, merged)


def _spelling(path: str) -> Iterable[str]:
    return (normalise(path),)


class PathSet:
    """A set of files and folders that answers whether a path :func:`may_be_under` any of them.

    The time of a check grows with the path's depth, not with the size of the set.  The record of a planned file counts
    as the files of all its attempts.
    """

    def __init__(self, paths: Iterable[str] = (), *, protects: bool = True) -> None:
        """``protects``: files in the set are kept.  ``False`` for folders to sweep: then spellings that denote two
        objects in most stores count as two paths."""
        self._spellings = _spellings if protects else _spelling
        self._paths: set[str] = set()
        self._stems: set[str] = set()
        self.add(paths)

    def add(self, paths: Iterable[str]) -> None:
        """Add files, folders and records of planned files."""
        new = {spelled for path in paths for spelled in self._spellings(path)}
        self._paths |= new
        self._stems |= {planned.stem for planned in map(planned_file, new) if planned is not None}

    def may_contain(self, path: str) -> bool:
        """Whether the path may be in the set, or inside a folder of the set."""
        return bool(self._paths) and any(map(self._contains, self._spellings(path)))

    def _contains(self, inner: str) -> bool:
        if self._stems and self._is_planned(inner):
            return True
        scheme, is_remote, _ = inner.partition("://")
        root = f"{scheme}://" if is_remote else "/" if inner.startswith("/") else inner
        if inner in self._paths or root in self._paths:
            return True
        slash = inner.find("/")
        while slash >= 0:
            if inner[:slash] in self._paths:
                return True
            slash = inner.find("/", slash + 1)
        return False

    def _is_planned(self, inner: str) -> bool:
        stem = stem_of(inner)
        if stem is None or stem in self._stems:
            return stem is not None
        folder, _, name = stem.rpartition("/")
        while folder:
            if f"{folder}/**/{name}" in self._stems:
                return True
            folder = folder.rpartition("/")[0]
        return False
