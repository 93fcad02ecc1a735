"""PyArrow's file systems, which PyIceberg makes from properties.

This is a separate module because it imports PyArrow's datasets through PyIceberg, and pandas if it is installed.  Code
that only reads a local file need not wait for these imports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyarrow.fs import S3FileSystem
from pyiceberg.io import ARROW_FILE_IO, FSSPEC_FILE_IO, PY_IO_IMPL, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO

from icekeeper.aws.session import Keys, aws_session
from icekeeper.aws.settings import (
    S3_CONNECT_TIMEOUT,
    S3_REGION,
    identity_in,
    is_anonymous,
    region_of,
    vendor_of,
    with_keys,
)

# PyArrow tries four times: with this limit a host that does not answer takes about 15 s, a host that refuses 3 s.
CONNECT_TIMEOUT_S = "3"


def current_keys(properties: Mapping[str, str]) -> Keys | None:
    """The current keys, which boto3 renews in time and PyArrow does not (platform: pyarrow-finds-other-keys).

    ``None``: the properties contain keys, or request anonymous access, or boto3 finds no keys and PyArrow looks for
    them itself.

    Raises:
        BotoCoreError, ClientError: there is no such profile, or the keys cannot be renewed.
    """
    identity = identity_in(properties)
    if is_anonymous(properties) or (identity.is_static and vendor_of(identity.session_token) is None):
        return None
    return aws_session(properties).keys()


def arrow_file_io(properties: Mapping[str, str], keys: Keys | None = None) -> PyArrowFileIO:
    """PyArrow's FileIO with these properties; ``keys`` (:func:`current_keys`) replace a profile and a role."""
    chosen = dict(properties)
    if keys is not None:
        chosen = with_keys(properties, *keys)
    if chosen.get(PY_IO_IMPL) in (None, FSSPEC_FILE_IO):
        chosen[PY_IO_IMPL] = ARROW_FILE_IO
    chosen.setdefault(S3_CONNECT_TIMEOUT, CONNECT_TIMEOUT_S)
    # Without a region, PyIceberg requests the bucket's region from AWS, even if the endpoint is not AWS.
    if region := region_of(chosen) or (aws_session(properties).region_name if keys is not None else None):
        chosen.setdefault(S3_REGION, region)
    file_io = load_file_io(chosen)
    return file_io if isinstance(file_io, PyArrowFileIO) else PyArrowFileIO(chosen)


def opening_late(filesystem: Any) -> Any:
    """The same file system; on S3, a copy that writes less than 10 MB with a single request
    (platform: pyarrow-s3-requests).

    It begins an upload after the first 10 MB instead of on opening the stream.  So an error of the bucket may be raised
    only when the stream is closed.  PyIceberg has no setting for this.
    """
    if not isinstance(filesystem, S3FileSystem):
        return filesystem
    _, (settings,) = filesystem.__reduce__()  # the arguments of its constructor, as for pickling
    return S3FileSystem(**{**settings, "allow_delayed_open": True})
