"""Tables that share files, and passes over them: no needed file is deleted."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from support.duckdb_session import DuckDB
from support.examples import NIGHTLY, examples
from support.model.ownership import OwnershipMachine
from support.model.truth import Rows

# Tables that nest, share files, are registered twice, renamed and restored; and passes over them.
#
# After every step PyIceberg reads each table completely through its newest metadata file, and pins and pending loads
# are complete.  Every run has the same forty cases; ``make nightly`` has two thousand new cases, where DuckDB reads
# each table in the end.

CASES = settings(
    derandomize=not NIGHTLY,
    database=None,
    max_examples=examples(40),
    stateful_step_count=30 if NIGHTLY else 12,
    suppress_health_check=list(HealthCheck),
    # A failing case prints all of its steps; shrinking it takes minutes.
    phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if NIGHTLY else [])],
)


@pytest.mark.slow
def test_no_pass_deletes_a_file_that_is_needed(tmp_path_factory: pytest.TempPathFactory, duckdb: DuckDB) -> None:
    """Passes that always refuse would prove nothing: most passes succeed, and files are deleted."""
    folder, tally = tmp_path_factory.mktemp("ownership"), Counter[str]()

    def read_again(metadata_location: str) -> Rows | None:
        return tuple(sorted(row["id"] for row in duckdb.rows(metadata_location))) if NIGHTLY else None

    class Machine(OwnershipMachine):
        def __init__(self) -> None:
            super().__init__(folder, tally, read_again)

    run_state_machine_as_test(Machine, settings=CASES)
    done, refused = tally["expire_snapshots succeeded"], tally["expire_snapshots refused"]
    assert done > refused
    assert tally["files deleted"] > done
