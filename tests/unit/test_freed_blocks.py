"""Whoever imports Icekeeper has the C library give large blocks back (platform 76)."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from icekeeper.machine.resources import give_back_freed_blocks

_CODE = """
import ctypes, sys
if sys.argv[1] == "icekeeper":
    import icekeeper

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Info
block = bytearray(1 << 20)
del block  # from now on blocks of this size come from an arena, unless the threshold is fixed
before = library.mallinfo2().hblks
block = bytearray(1 << 20)
print(library.mallinfo2().hblks - before)
"""


def test_no_other_library_is_asked() -> None:
    assert not give_back_freed_blocks({"CS_PATH": 0})


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library is another one, or older")
@pytest.mark.parametrize(("imported", "mappings"), [("nothing", "0"), ("icekeeper", "1")])
def test_a_block_as_large_as_one_that_was_freed_has_a_mapping_of_its_own(imported: str, mappings: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", _CODE, imported], capture_output=True, text=True, check=True, env=environment, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == (mappings, "")
