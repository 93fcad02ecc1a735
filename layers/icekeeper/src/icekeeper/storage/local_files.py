"""Files on this machine: walks folders, writes and removes files, and makes a scratch folder."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from icekeeper.errors import StorageError
from icekeeper.storage.listing import Level, ListedObject, known_ms
from icekeeper.storage.paths import split_path

# A folder with more entries than this is walked by a single thread.
_LEVEL_ENTRIES = 10_000
_AT_ONCE = 1_000
# Linux, proc(5): a name below this opens the file or folder of the descriptor, even if its path now names another.
_DESCRIPTORS = "/proc/self/fd"
_MAY_HOLD = os.path.isdir(_DESCRIPTORS) and hasattr(os, "O_PATH")


@contextmanager
def held(real: str, *, make: bool = False) -> Iterator[str]:
    """Another name for a file or folder, through its opened folder, which no link created later can redirect
    (rule: use-the-checked-folder).

    If the system does not support this (outside Linux), the name is unchanged.

    Args:
        real: the real path (:func:`os.path.realpath`), so that any link in it is new.
        make: create the folders above it.

    Raises:
        OSError: the folder does not exist, or a link has replaced a folder.
    """
    above, name = os.path.split(real)
    if not name:
        yield real
        return
    with held_folder(above, make=make) as folder:
        yield real if folder is None else f"{_DESCRIPTORS}/{folder}/{name}"


@contextmanager
def held_folder(real: str, *, make: bool = False) -> Iterator[int | None]:
    """The descriptor of an opened folder; ``None`` if the system does not support this.  Else as :func:`held`."""
    if not _MAY_HOLD:
        if make:
            os.makedirs(real, exist_ok=True)
        yield None
        return
    folder = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in filter(None, real.split("/")):
            inner = _folder_in(folder, part, make=make)
            os.close(folder)
            folder = inner
        yield folder
    finally:
        os.close(folder)


def _folder_in(folder: int, name: str, *, make: bool) -> int:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=folder)
    return os.open(name, flags, dir_fd=folder)


@contextmanager
def checked_file(name: str, allows: Callable[[str], bool]) -> Iterator[str | None]:
    """Another name for a file to read, which is judged by its real path when no link can redirect it any more.

    ``None``: it does not exist, is not a regular file, ``allows`` refuses its real path, or the system does not
    support this (outside Linux).
    """
    try:
        # Without access to the file: opening a pipe or a device may have effects.
        opened = os.open(name, os.O_PATH | os.O_CLOEXEC) if _MAY_HOLD else None
    except (OSError, ValueError):
        opened = None
    if opened is None:
        yield None
        return
    try:
        held_name = f"{_DESCRIPTORS}/{opened}"
        is_right = stat.S_ISREG(os.fstat(opened).st_mode) and allows(os.readlink(held_name))
        yield held_name if is_right else None
    finally:
        os.close(opened)


@contextmanager
def regular_file(name: str) -> Iterator[str]:
    """Another name for an opened file.  Links are refused, and so are pipes, on which a reader would wait.

    Raises:
        OSError: it does not exist, or is not a regular file.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        opened = os.open(name, flags | os.O_NONBLOCK)
    except BlockingIOError:  # a file server holds a lease on the file and will release it
        opened = os.open(name, flags)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        yield f"{_DESCRIPTORS}/{opened}" if _MAY_HOLD else name
    finally:
        os.close(opened)


@contextmanager
def new_file(name: str) -> Iterator[str]:
    """Another name for a file that is created here and replaces a file of that name."""
    with suppress(FileNotFoundError):
        os.unlink(name)
    opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        yield f"{_DESCRIPTORS}/{opened}" if _MAY_HOLD else name
    finally:
        os.close(opened)


@dataclass(slots=True)
class UnreadFile:
    """A regular file of a folder, whose size and time are read on demand, which takes longer than listing it."""

    path: str
    _entry: os.DirEntry[str]

    def read(self) -> ListedObject | None:
        """The file with its size and time; ``None``: it is gone."""
        return _listed(self.path, self._entry)


def unread_files(prefix: str) -> Iterator[UnreadFile]:
    """Every regular file below a folder; paths have the spelling of the prefix.

    Symbolic links are neither listed nor followed.  Missing folders, and files that are deleted while their folder is
    listed, are skipped.

    Raises:
        StorageError: a folder cannot be read.
    """
    return chain.from_iterable(_unread(prefix))


def _unread(prefix: str) -> Iterator[list[UnreadFile]]:
    pending = [(prefix.rstrip("/"), split_path(prefix).key)]
    while pending:
        above, directory = pending.pop()
        entries = _entries(directory)
        while some := [*islice(entries, _AT_ONCE)]:
            files = [UnreadFile(f"{above}/{e.name}", e) for e in some if e.is_file(follow_symlinks=False)]
            if len(files) < len(some):
                pending += [(f"{above}/{e.name}", e.path) for e in some if e.is_dir(follow_symlinks=False)]
            yield files


def walk(prefix: str) -> Iterator[ListedObject]:
    """Like :func:`unread_files`, with the sizes and times; files that were deleted during the walk are skipped."""
    return (found for file in unread_files(prefix) if (found := file.read()) is not None)


def local_level(prefix: str) -> Level | None:
    """Like :func:`walk`, but only the folder's own files and folders; ``None`` if it has over 10,000 entries."""
    objects: list[ListedObject] = []
    folders: list[str] = []
    for entry in _entries(split_path(prefix).key):
        if len(objects) + len(folders) >= _LEVEL_ENTRIES:
            return None
        path = f"{prefix.rstrip('/')}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            folders.append(path)
        elif (found := _listed(path, entry)) is not None:
            objects.append(found)
    return objects, folders


def old_folders(root: str, older_than_ms: int) -> Sequence[str]:
    """Folders below ``root``, the deepest first, in which nothing was created or removed since ``older_than_ms``.

    Raises:
        StorageError: a folder cannot be read.
    """
    found: list[str] = []
    pending = [root]
    while pending:
        for entry in _entries(pending.pop()):
            if entry.is_dir(follow_symlinks=False):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if status.st_nlink != 2:  # 2: the folder's own names only, so there is no folder in it
                    pending.append(entry.path)
                if status.st_mtime_ns // 1_000_000 < older_than_ms:
                    found.append(entry.path)
    return sorted(found, key=lambda path: path.count("/"), reverse=True)


def is_empty(folder: str) -> bool:
    """Whether a folder is empty; ``False`` if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def write_whole(path: str, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file, and create the folders above it, so that no reader ever sees a part of it.

    A part of a metadata file would stop sweeps, because it does not show which table it belongs to
    (rule: unknown-metadata-stops-sweeps).  A killed process leaves at most a file of another name, which is an orphan.
    The umask applies to ``mode``.

    Raises:
        OSError: it cannot be written; no file is left.
    """
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    unfinished = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.unfinished")
    try:
        with open(unfinished, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
            stream.write(data)
        os.replace(unfinished, path)
    except OSError:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def _entries(directory: str) -> Iterator[os.DirEntry[str]]:
    directory = os.path.abspath(directory)
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"{directory} cannot be listed: {error.strerror or error}") from error


def _listed(path: str, entry: os.DirEntry[str]) -> ListedObject | None:
    try:
        is_file = entry.is_file(follow_symlinks=False)
        return listed_file(path, entry.stat(follow_symlinks=False)) if is_file else None
    except FileNotFoundError:
        return None


def listed_file(path: str, status: os.stat_result) -> ListedObject | None:
    """The file with this status; ``None`` unless it is a regular file."""
    if not stat.S_ISREG(status.st_mode):
        return None
    return ListedObject(path, status.st_size, known_ms(status.st_mtime_ns // 1_000_000))


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """A new folder for temporary files, whose name begins with ``prefix``; it is removed at the end
    (rule: failures-cost-no-row).

    Raises:
        StorageError: the disk was full when the caller wrote into it.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=prefix) as folder:
            yield Path(folder)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise StorageError(
            f"the temporary folder {tempfile.gettempdir()} is full: free space there, or name a folder on another disk "
            "with TMPDIR"
        ) from error
