"""The control bucket: JSON documents that functions and jobs pass to each other by reference, each with its digest."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from icekeeper.errors import OperationRefused, StorageError
from icekeeper.machine.foreign_bytes import FileLimits, parsed_json
from icekeeper.report.listings import ListingWriter
from icekeeper.storage.failures import is_missing_bucket
from icekeeper.storage.storage import Storage

__all__ = ["ControlBucket", "digest_of", "proposals_key", "report_key", "require_of_run", "table_folder"]

AnyShape = TypeVar("AnyShape", bound=BaseModel)
Checked = TypeVar("Checked")


class ControlBucket:
    """One bucket, or a local folder in tests; every method raises StorageError when the store fails."""

    def __init__(self, address: str, storage: Storage | None = None) -> None:
        """``address`` is ``s3://BUCKET`` or a folder."""
        self.address = address.rstrip("/")
        self._storage = storage or Storage({})

    @property
    def name(self) -> str:
        """The bucket's name, as Step Functions wants it."""
        return self.address.removeprefix("s3://")

    def write(self, key: str, document: Any) -> str:
        """Write a JSON document, replacing one under that key; returns its SHA-256 in hexadecimal digits."""
        data = _encoded(document)
        try:
            self._storage.write(self._path(key), data)
        except StorageError as error:
            if is_missing_bucket(error):
                raise self._gone() from error
            raise
        return _digest(data)

    def read(self, key: str, digest: str) -> Any:
        """The document under a key, if its SHA-256 is ``digest``.

        Raises:
            OperationRefused: another document is there by now.
        """
        data = self._storage.read(self._path(key))
        if _digest(data) != digest:
            raise OperationRefused(
                f"{self._path(key)} is not the document that this run wrote (its digest differs); start another run"
            )
        return _parse(data, self._path(key))

    def find(self, key: str) -> Any | None:
        """The document under a key, ``None`` when there is none.

        Raises:
            StorageError: it cannot be read, or there is no such bucket (rule 192).
        """
        path = self._path(key)
        try:
            data = self._storage.read(path)
        except StorageError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            if is_missing_bucket(error.__cause__):
                raise self._gone() from error
            return None
        return _parse(data, path)

    def find_object(self, key: str, shape: type[BaseModel]) -> Mapping[str, Any] | None:
        """As :meth:`find`, for a JSON object that has at least the fields of ``shape`` (rule 188).

        Raises:
            StorageError: it has not: somebody changed it.
        """
        found: Mapping[str, Any] | None = self.find(key)
        if found is not None:
            self._checked(key, found, shape)
        return found

    def find_objects(self, key: str, shape: type[AnyShape]) -> list[AnyShape]:
        """The objects of a JSON list; none when there is no document.

        Raises:
            StorageError: as :meth:`find_object`.
        """
        found = self.find(key)
        return [] if found is None else self._checked(key, found, list[shape])  # type: ignore[valid-type]

    def _checked(self, key: str, found: Any, shape: type[Checked]) -> Checked:
        try:
            return TypeAdapter(shape).validate_python(found)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the document"
            raise StorageError(
                f"{self._path(key)} is not as this run wrote it ({where}: {first['msg']}); start another run"
            ) from None

    def find_hint(self, key: str) -> Any | None:
        """As :meth:`find`, for a document that only saves work: ``None`` also when it is no JSON."""
        try:
            return self.find(key)
        except StorageError as error:
            if not isinstance(error.__cause__, ValueError):
                raise
            return None

    def listings(self, folder: str) -> ListingWriter:
        """A writer for lists of files that are too long to stand in an outcome; each becomes a document in a folder."""

        def write(name: str, files: Mapping[str, Sequence[str]]) -> str:
            key = f"{folder}/{name}.files.json"
            self.write(key, {kind: list(paths) for kind, paths in files.items()})
            return self._path(key)

        return write

    def _gone(self) -> StorageError:
        return StorageError(
            f"the control bucket {self.name} does not exist; correct ICEKEEPER_CONTROL_BUCKET, or deploy the stack "
            "again, which makes it"
        )

    def _path(self, key: str) -> str:
        return f"{self.address}/{key}"


def proposals_key(run_id: str) -> str:
    """The key of a run's proposals, which the state machine's map reads."""
    return f"runs/{run_id}/proposals.json"


def report_key(run_id: str) -> str:
    """The key of a run's report; a run that has one has ended."""
    return f"runs/{run_id}/report.json"


def table_folder(run_id: str, spelling: str) -> str:
    """The key prefix of the documents of one table of a run, without the last slash.

    ``spelling`` is the table's :attr:`TableIdentity.spelling`, of which it has one within a run; it is hashed, because
    table names may have characters that keys should not have.
    """
    return f"runs/{run_id}/{hashlib.sha256(spelling.encode()).hexdigest()[:32]}"


def require_of_run(key: str, run_id: str) -> str:
    """The key, if it is that of a document of one of the run's tables (rule 266).

    Raises:
        OperationRefused: it is not: no answer of a state of this run has named it.
    """
    if not re.fullmatch(rf"runs/{re.escape(run_id)}/[0-9a-f]{{32}}/[a-z0-9_-]+\.json", key):
        raise OperationRefused(f"{key!r} is no document of a table of run {run_id}")
    return key


def digest_of(document: Any) -> str:
    """The SHA-256 of a JSON document as it would be written, in hexadecimal digits."""
    return _digest(_encoded(document))


def _encoded(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _parse(data: bytes, path: str) -> Any:
    try:
        return parsed_json(data, FileLimits(path))
    except ValueError as error:
        raise StorageError(f"{path} is no JSON document: {error}") from error
