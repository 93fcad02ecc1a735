"""The fingerprint of a policy: it changes with what decides what a pass does to a table, and with nothing else."""

from __future__ import annotations

import pytest

from icekeeper.policy import DEPLOYMENT_KEYS, Layer, resolve


def fingerprint(source: str = "--set", **settings: str) -> str:
    return resolve([Layer(source, settings)]).fingerprint()


@pytest.mark.parametrize("key", sorted(DEPLOYMENT_KEYS))
def test_what_a_detection_looks_at_and_when_wakes_no_table_that_is_done(key: str) -> None:
    value = {"table_settings": "all"}.get(key, "other*" if key.endswith("_filter") else "7")
    assert fingerprint(**{key: value}) == fingerprint()


def test_a_value_counts_and_its_source_does_not() -> None:
    assert fingerprint(min_input_files="7") != fingerprint()
    assert fingerprint(min_input_files="7") == fingerprint("the policy file", min_input_files="7")
    assert fingerprint(min_input_files="5") == fingerprint()
