"""A store that fails in the midst of a pass costs no row, and the next pass cleans up (rule 179)."""

from __future__ import annotations

import pytest

from icekeeper.demo.seaweedfs import SeaweedFSServer
from support.failed_passes import FailedPasses
from support.proxies import Fault, WireRequest

ADVICE = "failed with ExpiredToken: The provided token has expired; sign in again, or name a profile or role"


@pytest.fixture(scope="module")
def passes(seaweedfs: SeaweedFSServer, tmp_path_factory: pytest.TempPathFactory) -> FailedPasses:
    return FailedPasses(seaweedfs, tmp_path_factory.mktemp("passes"))


@pytest.mark.parametrize(
    ("fault", "kind", "ending"),
    [
        (Fault.EXPIRED, "GET", "-a0.parquet"),  # the proof of what was written
        (Fault.EXPIRED, "PUT", ".parquet"),
        (Fault.EXPIRED, "LIST", ""),
        (Fault.EXPIRED, "DELETE_MANY", ""),
        (Fault.LOST, "PUT", ".metadata.json"),
        (Fault.LATE_503, "DELETE_MANY", ""),
    ],
)
def test_a_store_that_fails_costs_no_row(passes: FailedPasses, fault: Fault, kind: str, ending: str) -> None:
    """At the first request of a kind; ``make nightly`` tries all requests of a pass."""

    def begins(_: int, request: WireRequest) -> bool:
        return request.kind == kind and request.path.partition("?")[0].endswith(ending)

    done = passes.run(fault, begins)
    assert done.hit is not None
    assert not any("rows were not kept" in one for one in done.told)
    if fault is Fault.EXPIRED:
        assert done.told
        assert [one for one in done.told if ADVICE not in one] == []
    else:
        assert done.told == ()
