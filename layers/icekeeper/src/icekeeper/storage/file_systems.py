"""PyArrow's file systems, which PyIceberg makes from properties.

This is a module of its own because it imports PyArrow's datasets through PyIceberg, and with them pandas where that is
installed: code that only reads a local file does not wait for them.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.io import ARROW_FILE_IO, FSSPEC_FILE_IO, PY_IO_IMPL, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO

from icekeeper.storage.s3_settings import S3_CONNECT_TIMEOUT, S3_REGION, region_of

__all__ = ["arrow_file_io"]

# PyArrow tries four times: a silent host then costs about 15 s, a refusing one 3 s.
CONNECT_TIMEOUT_S = "3"


def arrow_file_io(properties: Mapping[str, str]) -> PyArrowFileIO:
    """The FileIO that PyIceberg makes of these properties if it is PyArrow's, else PyArrow's with these properties."""
    chosen = dict(properties)
    if chosen.get(PY_IO_IMPL) in (None, FSSPEC_FILE_IO):
        chosen[PY_IO_IMPL] = ARROW_FILE_IO
    chosen.setdefault(S3_CONNECT_TIMEOUT, CONNECT_TIMEOUT_S)
    # Without a region PyIceberg asks AWS for the bucket's, even when the endpoint is somewhere else.
    if region := region_of(chosen):
        chosen.setdefault(S3_REGION, region)
    file_io = load_file_io(chosen)
    return file_io if isinstance(file_io, PyArrowFileIO) else PyArrowFileIO(chosen)
