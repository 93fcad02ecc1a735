"""What a container's limits leave of a machine."""

from __future__ import annotations

import pytest

from icekeeper.machine.resources import limited_cores, limited_memory, this_machine


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [
        ("", 8),
        ("max 100000", 8),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("10000 100000", 1),
        ("1600000 100000", 8),
    ],
)
def test_a_quota_of_processor_time_counts_as_cores(cpu_max: str, cores: int) -> None:
    assert limited_cores(8, cpu_max) == cores


def test_a_limit_of_memory_counts_where_it_is_lower() -> None:
    assert [limited_memory(1000, text) for text in ("", "max", "600", "9223372036854771712")] == [1000, 1000, 600, 1000]


def test_a_machine_has_something() -> None:
    here = this_machine()
    assert here.cores >= 1
    assert here.memory_bytes > 2**20
