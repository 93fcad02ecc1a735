"""How two spellings of one path are recognised, and when a path lies inside a location.

Object stores' paths are compared as text.  Local ones are compared as the real paths behind all symbolic links, which
costs a look at the file system; a file that is deleted by one name is gone under every other.

Tables committed by several engines mix ``s3://`` with ``s3a://`` and ``file:/x`` with ``file:///x``, and some
writers percent-encode partition values that others leave alone.  Two questions are asked of such paths, and a wrong
answer has different costs (rule 85, platform 26):

* *Could this be a file that something references?*  :func:`normalise` and :func:`may_be_under` say yes too often
  rather than too seldom.  An S3 key may truly contain ``%20`` or ``//``, so two different objects can normalise
  alike: then a reference to one protects both, and less is deleted.
* *Is this surely ours to delete?*  :func:`is_under` compares what would really be deleted, character by character;
  only differences that cannot name another object are forgiven.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from icekeeper.storage.attempt_names import planned_file, stem_of
from icekeeper.storage.real_paths import real_path

__all__ = [
    "S3_SCHEMES",
    "PathSet",
    "SplitPath",
    "authority",
    "is_local",
    "is_under",
    "leads_out",
    "may_be_under",
    "normalise",
    "split_path",
]

S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
# RFC 3986, section 3.1; "file:/x" has one slash, so the slashes are not part of it.
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):(?=/)")
_SLASHES = re.compile(r"/{2,}")
# Already in normal form, which most paths are: nothing to decode, no empty, ``.`` or ``..`` segment.
_NORMAL = re.compile(r"s3:/(?:/(?!\.{1,2}(?:/|\Z))[^/%]+)+")
# No writer encodes so often; without a limit, links whose names decode to each other would be followed for ever.
_MOST_LAYERS = 100


@dataclass(frozen=True, slots=True)
class SplitPath:
    """A path in its parts, nothing decoded: ``scheme`` is lower case and empty for a bare local path."""

    scheme: str
    authority: str
    """Bucket or host; empty for local files."""
    key: str
    """The object key without a leading slash, or the local path."""


def split_path(path: str) -> SplitPath:
    """Split a path literally: ``?``, ``#`` and ``%`` are ordinary characters of a key, as object stores see them."""
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
    return split_path(path).scheme in ("", "file")


def normalise(path: str) -> str:
    """The key by which paths are compared; never a path to read or delete.

    ``s3``, ``s3a`` and ``s3n`` are one scheme, local spellings become ``/x``, percent-encoding is decoded until
    nothing is left to decode, repeated and trailing slashes go.  Local paths become absolute, without ``.``, ``..`` and
    symbolic links.  Idempotent, but for links whose own names are percent-encoded.
    """
    if _NORMAL.fullmatch(path):
        return path
    for _ in range(_MOST_LAYERS):
        # Links are followed before each decoding, because one may truly be named "%41".
        path = _tidied(path)
        decoded = unquote(path) if "%" in path else path
        if decoded == path:
            break
        path = decoded
    return path


def _tidied(path: str) -> str:
    parts = split_path(path)
    key = _SLASHES.sub("/", parts.key)
    if parts.scheme in ("", "file"):
        return real_path(key) if key else ""
    scheme = "s3" if parts.scheme in S3_SCHEMES else parts.scheme
    return f"{scheme}://{parts.authority}/{key.strip('/')}".rstrip("/")


def authority(path: str) -> str:
    """Scheme and bucket or host of a path, ``s3a`` and ``s3n`` being ``s3``: ``s3://bucket``; ``file://`` if local."""
    parts = split_path(path)
    if parts.scheme in ("", "file"):
        return "file://"
    return f"{'s3' if parts.scheme in S3_SCHEMES else parts.scheme}://{parts.authority}"


def is_under(path: str, location: str) -> bool:
    """Whether a file is surely inside a location: the guard before deleting.

    Nothing is decoded, because the literal path is what gets deleted, and a path with ``.`` or ``..`` in it is never
    inside.  Repeated slashes are forgiven for local files only: in an object store they name another object.  A local
    file is where it really is: one that a symbolic link puts outside is outside.
    """
    if authority(path) != authority(location):
        return False
    inner, outer = split_path(path).key, split_path(location).key.rstrip("/")
    if _has_dots(inner):
        return False
    if is_local(path):
        if not inner or not location:
            return False
        inner = real_path(_SLASHES.sub("/", inner))
        outer = real_path(_SLASHES.sub("/", outer)).rstrip("/") if outer else ""
    elif not outer:
        return bool(inner)
    return inner.startswith(f"{outer}/") and len(inner) > len(outer) + 1


def leads_out(path: str, location: str) -> bool:
    """Whether a local path is spelled as one inside a location from which a symbolic link leads it out."""
    if not is_local(path) or not is_local(location):
        return False
    inner, outer = (_SLASHES.sub("/", split_path(spelled).key).rstrip("/") for spelled in (path, location))
    return inner.startswith(f"{outer}/") and not is_under(path, location)


def may_be_under(path: str, location: str) -> bool:
    """Whether some reader could take the path for one inside the location, or for the location itself.

    The guard that protects files which may belong to somebody else.
    """
    inner, outer = normalise(path), normalise(location)
    return inner == outer or inner.startswith(outer if outer.endswith("/") else f"{outer}/")


class PathSet:
    """A set of files and folders that answers whether a path :func:`may_be_under` any of them.

    The time of an answer grows with the path's depth, not with the set.  A record of a planned file stands for the
    files of all attempts (:mod:`icekeeper.storage.attempt_names`).
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._paths: set[str] = set()
        self._stems: set[str] = set()
        self.add(paths)

    def add(self, paths: Iterable[str]) -> None:
        """Add files, folders and records of planned files."""
        new = {normalise(path) for path in paths}
        self._paths |= new
        self._stems |= {planned.stem for planned in map(planned_file, new) if planned is not None}

    def may_contain(self, path: str) -> bool:
        """Whether the path could be taken for one of these, or for a file inside one of these."""
        if not self._paths:
            return False
        inner = normalise(path)
        if self._stems and self._is_planned(inner):
            return True
        if inner in self._paths or (inner.startswith("/") and "/" in self._paths):
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


def _has_dots(key: str) -> bool:
    return not {".", ".."}.isdisjoint(key.split("/"))
