"""The two orders of uuids that readers use, and uuids on which they differ."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st


def _signed(value: bytes) -> tuple[int, int]:
    """As ``java.util.UUID.compareTo`` orders them, and with it Iceberg-Java up to 1.10."""
    most, least = struct.unpack(">qq", value)
    return most, least


ORDERS: tuple[Callable[[bytes], Any], ...] = (_signed, bytes)
"""Of Java; and of the specification, PyIceberg and DuckDB: unsigned bytes."""

_NUMBERS = (0, 1, 2, 2**62, 2**63 - 2, 2**63 - 1, 2**63, 2**63 + 1, 2**63 + 2**62, 2**64 - 2, 2**64 - 1)
AWKWARD_UUIDS = tuple(struct.pack(">QQ", *pair) for pair in itertools.product(_NUMBERS, repeat=2))
"""Both halves of both signs, at both ends and beside them."""

uuid_values = st.sampled_from(AWKWARD_UUIDS) | st.binary(min_size=16, max_size=16)
