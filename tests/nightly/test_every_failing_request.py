"""A store that fails at any request whatever of a pass costs no row (rule 179)."""

from __future__ import annotations

from functools import partial
from itertools import count
from pathlib import Path

import pytest

from icekeeper.demo.seaweedfs import SeaweedFSServer
from support.failed_passes import FailedPasses
from support.proxies import Fault, WireRequest


@pytest.mark.parametrize("fault", Fault)
def test_a_store_may_fail_at_every_request(seaweedfs: SeaweedFSServer, tmp_path: Path, fault: Fault) -> None:
    passes = FailedPasses(seaweedfs, tmp_path)
    for first in count():
        done = passes.run(fault, partial(_is_number, first))
        if done.hit is None:
            break
        told = [one for one in done.told if "ExpiredToken" not in one or "sign in again" not in one]
        assert told == [], f"{fault.name} from request {first} on, {done.hit}"
        assert bool(done.told) is (fault is Fault.EXPIRED)
    assert first > 30


def _is_number(first: int, number: int, _: WireRequest) -> bool:
    return number == first
