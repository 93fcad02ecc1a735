"""Has the C library give large blocks back to the system as soon as they are free (platform 76).

Python's own bytes come from it: what boto3 reads and sends.
"""

from __future__ import annotations

import ctypes
from collections.abc import Container
import os

__all__ = ["give_back_freed_blocks"]

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 256 * 1024


def give_back_freed_blocks(system_names: Container[str]) -> bool:
    """Whether this process does so from now on; only the GNU C library is asked, of whose names ``system_names`` has one."""
    if "CS_GNU_LIBC_VERSION" not in system_names:
        return False
    return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES))


give_back_freed_blocks(getattr(os, "confstr_names", ()))
