"""PyIceberg file I/O for buckets that refuse to list: it never asks whether a file exists, names being unique."""

from __future__ import annotations

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO


class _BlindFile(PyArrowFile):
    def exists(self) -> bool:
        return False


class BlindFileIO(PyArrowFileIO):
    """Set as ``py-io-impl`` for PyIceberg as a writer into AWS table buckets, which moto plays truly."""

    def new_output(self, location: str) -> PyArrowFile:
        output = super().new_output(location)
        output.__class__ = _BlindFile
        return output
