"""Whose file is this?  Tables that nest, share, are registered twice, renamed and restored; and passes over them.

After every step each table is complete through its newest metadata file, as PyIceberg reads it, and so are pins and
pending loads.  One hundred cases in every run, always the same ones; two thousand new ones with ``make nightly``, where
DuckDB reads each table in the end.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from support.duckdb_session import DuckDB
from support.examples import NIGHTLY, examples
from support.ownership.machine import OwnershipMachine
from support.ownership.truth import Rows
from support.ownership.world import Lake

CASES = settings(
    derandomize=not NIGHTLY,
    database=None,
    max_examples=examples(100),
    stateful_step_count=30 if NIGHTLY else 12,
    suppress_health_check=list(HealthCheck),
    # What a failing case did is told in full; shrinking it takes minutes.
    phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if NIGHTLY else [])],
)


@pytest.mark.slow
def test_no_pass_takes_what_somebody_needs(tmp_path_factory: pytest.TempPathFactory, duckdb: DuckDB) -> None:
    """And passes that could always refuse would show nothing: most do their work, and files do go."""
    folder, tally = tmp_path_factory.mktemp("ownership"), Counter[str]()
    template = folder / "template"
    Lake.make_template(template)

    def read_again(metadata_location: str) -> Rows | None:
        return tuple(sorted(row["id"] for row in duckdb.rows(metadata_location))) if NIGHTLY else None

    class Machine(OwnershipMachine):
        def __init__(self) -> None:
            super().__init__(template, folder, tally, read_again)

    run_state_machine_as_test(Machine, settings=CASES)
    done, refused = tally["expire_snapshots succeeded"], tally["expire_snapshots refused"]
    assert done > refused
    assert tally["files deleted"] > done
