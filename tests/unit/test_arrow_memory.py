"""Whoever imports Icekeeper first has Arrow give memory back (platform 63)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from icekeeper.machine.resources import choose_allocator

GNU = {"CS_GNU_LIBC_VERSION": 2, "CS_PATH": 0}


@pytest.mark.parametrize(
    ("before", "names", "after"),
    [
        ({}, GNU, {"ARROW_DEFAULT_MEMORY_POOL": "jemalloc", "JE_ARROW_MALLOC_CONF": "narenas:2"}),
        (
            {"ARROW_DEFAULT_MEMORY_POOL": "system", "JE_ARROW_MALLOC_CONF": "narenas:9"},
            GNU,
            {"ARROW_DEFAULT_MEMORY_POOL": "system", "JE_ARROW_MALLOC_CONF": "narenas:9"},
        ),
        ({}, {"CS_PATH": 0}, {}),
        ({}, (), {}),
    ],
)
def test_a_choice_is_kept_and_only_gnu_wheels_are_sure_to_have_it(
    before: dict[str, str], names: dict[str, int], after: dict[str, str]
) -> None:
    choose_allocator(before, names)
    assert before == after


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="Arrow's wheels for other systems lack it")
def test_arrow_uses_it() -> None:
    """In a process of its own: Arrow asks once."""
    code = "import icekeeper, pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, timeout=60
    )
    assert (done.stdout, done.stderr) == ("jemalloc\n", "")
