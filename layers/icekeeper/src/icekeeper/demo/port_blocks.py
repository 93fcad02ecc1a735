"""Blocks of free ports on loopback, for servers that may be started by several processes at once."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from icekeeper.errors import StorageError

__all__ = ["GRPC_OFFSET", "HOST", "reserved_ports"]

HOST = "127.0.0.1"
GRPC_OFFSET = 10_000
"""weed listens for gRPC at every port + 10000."""
# Ports and gRPC ports both lie below 32768, where Linux begins to hand out ports to outgoing connections.
_FIRST_PORT, _LAST_PORT = 20_000, 22_700


@contextmanager
def reserved_ports(count: int) -> Iterator[tuple[int, ...]]:
    """Yield so many free ports, each with its gRPC port free too.

    The first port of the block stays bound by us for as long as the server runs: two parents that look at the same
    moment, when neither server listens yet, cannot settle on the same block.

    Raises:
        StorageError: no block is free.
    """
    size = 1 + count
    blocks = list(range(_FIRST_PORT, _LAST_PORT, size))
    random.shuffle(blocks)
    for first in blocks:
        with contextlib.ExitStack() as stack:
            if not _bind(first, stack):
                continue
            ports = tuple(range(first + 1, first + size))
            with contextlib.ExitStack() as probes:
                if not all(_bind(port + offset, probes) for port in ports for offset in (0, GRPC_OFFSET)):
                    continue
            yield ports
            return
    raise StorageError(f"No free block of ports for SeaweedFS between {_FIRST_PORT} and {_LAST_PORT} on {HOST}.")


def _bind(port: int, stack: contextlib.ExitStack) -> bool:
    try:
        stack.enter_context(contextlib.closing(socket.socket())).bind((HOST, port))
    except OSError:
        return False
    return True
