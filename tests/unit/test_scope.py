"""A key of detection or scheduling works where it is set, or is refused."""

from __future__ import annotations

import pytest

from icekeeper.cycle.service import CycleSettings
from icekeeper.errors import PolicyError
from icekeeper.pipeline.events import MachineInput, parse_event
from icekeeper.policy.keys import DEPLOYMENT_KEYS, POLICY_KEYS, Policy, Scope, refuse_meaningless


def refused(scope: Scope) -> set[str]:
    found = set()
    for key in POLICY_KEYS:
        try:
            refuse_meaningless([key], scope)
        except PolicyError:
            found.add(key)
    return found


def test_each_call_takes_the_keys_that_it_reads() -> None:
    of_cycles = {"detection_interval_s", "max_concurrent_jobs", "max_concurrent_jobs_per_worker", "table_settings"}
    of_scans = {"bucket_filter", "namespace_filter", "table_filter", "max_jobs_per_detection", "detection_timeout_s"}
    assert refused(Scope.CYCLE) == set()
    assert refused(Scope.SCAN) == of_cycles
    assert refused(Scope.TABLE) == of_cycles | of_scans
    assert DEPLOYMENT_KEYS - of_cycles - of_scans == {"job_timeout_s", "job_retry_limit"}


@pytest.mark.parametrize(
    ("given", "is_taken"),
    [
        ({"settings": {"table_filter": "x"}}, True),
        ({"settings": {"max_concurrent_jobs": "9"}}, False),
        ({"table": "ns.t", "settings": {"table_filter": "x"}}, False),
        ({"table": "ns.t", "settings": {"job_timeout_s": "60"}}, True),
    ],
)
def test_the_state_machine_takes_the_same(given: dict[str, object], is_taken: bool) -> None:
    if is_taken:
        parse_event(MachineInput, given)
        return
    with pytest.raises(PolicyError, match="has no meaning for one "):
        parse_event(MachineInput, given)


def test_a_process_has_no_more_workers_than_there_are_slots() -> None:
    settings = CycleSettings.of(Policy())
    assert (settings.interval_s, settings.workers, settings.slots) == (3600, 2, 4)
    assert (settings.timeout_s, settings.retries) == (3600, 1)
    assert CycleSettings.of(Policy(max_concurrent_jobs=1)).workers == 1
    assert CycleSettings.of(Policy(max_concurrent_jobs_per_worker=9)).workers == 4
