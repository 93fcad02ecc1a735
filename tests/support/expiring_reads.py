"""Work for a worker whose keys expire; it imports little, because workers import it."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass

from icekeeper.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class ReadTwice:
    """The file, and the endpoint that lets the keys expire between the two reads."""

    io_properties: dict[str, str]
    path: str
    expiry_endpoint: str


def read_twice(task: ReadTwice) -> list[bytes]:
    """Read with boto3 and with PyArrow, before and after the keys expire."""
    storage, found = Storage(task.io_properties), []
    for _ in range(2):
        with storage.open_input(task.path) as stream:
            found += [storage.read(task.path), stream.read()]
        urllib.request.urlopen(task.expiry_endpoint).read()
    return found
