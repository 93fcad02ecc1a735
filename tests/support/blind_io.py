"""PyIceberg file I/O for table buckets, as moto in this process plays them.

As these buckets refuse to list, it never asks whether a file exists, names being unique.  It hands files to moto as
they are: each would take longer over HTTP than PyIceberg takes to make it.
"""

from __future__ import annotations

import io
from typing import Any

from moto.s3.models import s3_backends
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO

from local_stack.template import ACCOUNT


class _Upload(io.BytesIO):
    """A file that is there once it is closed."""

    def __init__(self, bucket: str, key: str) -> None:
        super().__init__()
        self._address = (bucket, key)

    def close(self) -> None:
        if not self.closed:
            s3_backends[ACCOUNT]["aws"].put_object(*self._address, self.getvalue())
        super().close()


class _BlindFile(InputFile, OutputFile):
    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._bucket, _, self._key = location.removeprefix("s3://").partition("/")

    def __len__(self) -> int:
        return len(self._read())

    def exists(self) -> bool:
        return False

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self._read())

    def create(self, overwrite: bool = False) -> Any:
        return _Upload(self._bucket, self._key)

    def to_input_file(self) -> InputFile:
        return self

    def _read(self) -> bytes:
        found = s3_backends[ACCOUNT]["aws"].get_object(self._bucket, self._key)
        assert found is not None, f"there is no {self.location}"
        return bytes(found.value)


class BlindFileIO(PyArrowFileIO):
    """Set as ``py-io-impl`` for PyIceberg as a writer into AWS table buckets, which moto plays truly."""

    def new_input(self, location: str) -> Any:
        return _BlindFile(location)

    def new_output(self, location: str) -> Any:
        return _BlindFile(location)
