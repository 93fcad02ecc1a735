"""How two spellings of one path are recognised, and when a path lies inside a location.

Object stores' paths are compared as text.  Local ones are compared as the real paths behind all symbolic links, which
costs a look at the file system; a file that is deleted by one name is gone under every other.

Tables committed by several engines mix ``s3://`` with ``s3a://`` and ``file:/x`` with ``file:///x``, and some
writers percent-encode partition values that others leave alone.  Two questions are asked of such paths, and a wrong
answer has different costs (rule 85, platform 26):

* *Could this be a file that something references?*  :func:`normalise`, and what :mod:`icekeeper.storage.path_set`
  makes of it, say yes too often rather than too seldom.  An S3 key may truly contain ``%20`` or ``//``, so two
  different objects can normalise alike: then a reference to one protects both, and less is deleted.
* *Is this surely ours to delete?*  :func:`is_under` compares what would really be deleted, character by character;
  only differences that cannot name another object are forgiven.

Who asks several questions about one path asks them of a :class:`ComparedPath`: the file system is then looked at once
for all of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from icekeeper.storage.real_paths import real_path

__all__ = [
    "LOCAL_SCHEMES",
    "S3_SCHEMES",
    "ComparedPath",
    "SplitPath",
    "authority",
    "compared",
    "is_local",
    "is_under",
    "leads_out",
    "normalise",
    "split_path",
]

S3_SCHEMES = frozenset({"s3", "s3a", "s3n"})
LOCAL_SCHEMES = ("", "file")
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
    return split_path(path).scheme in LOCAL_SCHEMES


def normalise(path: str) -> str:
    """The key by which paths are compared; never a path to read or delete.

    ``s3``, ``s3a`` and ``s3n`` are one scheme, local spellings become ``/x``, percent-encoding is decoded until
    nothing is left to decode, repeated and trailing slashes go.  Local paths become absolute, without ``.``, ``..`` and
    symbolic links.  Idempotent, but for links whose own names are percent-encoded.
    """
    if isinstance(path, ComparedPath):
        return path.normal
    if _is_tidy(path):
        return _decoded(real_path(path))
    return path if _NORMAL.fullmatch(path) else _decoded(_tidied(path))


def _is_tidy(path: str) -> bool:
    """Whether a path is local and spelled as its real path might be, as most local paths are; a quick look."""
    return path.startswith("/") and not ("//" in path or "/." in path or "%" in path or path.endswith("/"))


def _decoded(path: str) -> str:
    """A tidied path after all decoding."""
    for _ in range(_MOST_LAYERS):
        # Links are followed before each decoding, because one may truly be named "%41".
        if "%" not in path or (decoded := unquote(path)) == path:
            break
        path = _tidied(decoded)
    return path


def _tidied(path: str) -> str:
    parts = split_path(path)
    key = _SLASHES.sub("/", parts.key)
    if parts.scheme in LOCAL_SCHEMES:
        return real_path(key) if key else ""
    scheme = "s3" if parts.scheme in S3_SCHEMES else parts.scheme
    return f"{scheme}://{parts.authority}/{key.strip('/')}".rstrip("/")


def authority(path: str) -> str:
    """Scheme and bucket or host of a path, ``s3a`` and ``s3n`` being ``s3``: ``s3://bucket``; ``file://`` if local."""
    return path.authority if isinstance(path, ComparedPath) else _authority(split_path(path))


def _authority(parts: SplitPath) -> str:
    if parts.scheme in LOCAL_SCHEMES:
        return "file://"
    return f"{'s3' if parts.scheme in S3_SCHEMES else parts.scheme}://{parts.authority}"


class ComparedPath(str):
    """A path, and what it names at the moment at which :func:`compared` looked.

    Everything here takes one as it takes a path, and looks at the file system no more.  A link may come at any time, so
    that none is kept beyond the questions of that moment.
    """

    __slots__ = ("authority", "has_dots", "is_plain", "key", "normal")

    authority: str
    key: str
    """What would really be deleted: the key in the bucket, or the real path behind all links."""
    has_dots: bool
    """Whether it is spelled with ``.`` or ``..``."""
    is_plain: bool
    """Whether the text alone tells what it names, since no link lies on the way."""
    normal: str


def compared(path: str, *, is_plain: bool = False) -> ComparedPath:
    """Look what a path names now; one that was ``is_plain`` before is not looked at again, but taken by its text."""
    if isinstance(path, ComparedPath):
        return path
    found = ComparedPath(path)
    if _is_tidy(path):
        found.authority, found.has_dots = "file://", False
        key = found.key = path if is_plain else real_path(path)
        found.is_plain, found.normal = key == path, _decoded(key)
        return found
    parts = split_path(path)
    found.authority, found.has_dots = _authority(parts), _has_dots(parts.key)
    if parts.scheme in LOCAL_SCHEMES:
        key = _SLASHES.sub("/", parts.key)
        found.key = key if is_plain or not key else real_path(key)
        found.is_plain, found.normal = found.key == key, _decoded(found.key)
    else:
        found.key, found.is_plain, found.normal = parts.key, True, normalise(path)
    return found


def is_under(path: str, location: str) -> bool:
    """Whether a file is surely inside a location: the guard before deleting.

    Nothing is decoded, because the literal path is what gets deleted, and a path with ``.`` or ``..`` in it is never
    inside.  Repeated slashes are forgiven for local files only: in an object store they name another object.  A local
    file is where it really is: one that a symbolic link puts outside is outside.
    """
    inner = path if isinstance(path, ComparedPath) else compared(path)
    outer = location if isinstance(location, ComparedPath) else compared(location)
    if inner.authority != outer.authority or inner.has_dots or not inner.key or not location:
        return False
    root = outer.key.rstrip("/")
    if not root and inner.authority != "file://":
        return True
    return inner.key.startswith(f"{root}/") and len(inner.key) > len(root) + 1


def leads_out(path: str, location: str) -> bool:
    """Whether a local path is spelled as one inside a location from which a symbolic link leads it out."""
    if not is_local(path) or not is_local(location):
        return False
    inner, outer = (_SLASHES.sub("/", split_path(spelled).key).rstrip("/") for spelled in (path, location))
    return inner.startswith(f"{outer}/") and not is_under(path, location)


def _has_dots(key: str) -> bool:
    return not {".", ".."}.isdisjoint(key.split("/"))
