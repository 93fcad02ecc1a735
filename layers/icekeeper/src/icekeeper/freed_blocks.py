"""Has the C library give large blocks back to the system as soon as they are free (platform 76).

Python's own bytes come from it, such as those that boto3's threads read and send.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Container

__all__ = ["give_back_freed_blocks"]

# M_MMAP_THRESHOLD of malloc.h.
_MMAP_THRESHOLD = -3
_LARGE_BYTES = 256 * 1024


def give_back_freed_blocks(system_names: Container[str]) -> bool:
    """Whether this process does so from now on; no other library than GNU's is asked.

    ``system_names`` are those of ``os.confstr``; only the GNU C library has a name of its own among them.
    """
    if "CS_GNU_LIBC_VERSION" not in system_names:
        return False
    return bool(ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE_BYTES))


give_back_freed_blocks(getattr(os, "confstr_names", ()))
