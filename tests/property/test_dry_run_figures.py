"""Whatever the table: the figures of a dry run over several operations are those of the pass right after it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from support.deletes import commit_deletes, create_by_region, equality_delete, position_delete, rows_of
from support.examples import examples
from support.maintained_table import MaintainedTable, assert_agree, dry_run, maintained_table

REGIONS = ("us", "eu")


@dataclass(frozen=True)
class Write:
    """One commit of a writer: rows, or the deletion of some."""

    kind: str
    region: str
    rows: int


writes = st.builds(
    Write,
    kind=st.sampled_from(["append", "append", "append", "position", "equality"]),
    region=st.sampled_from(REGIONS),
    rows=st.integers(1, 4),
)
policies = st.fixed_dictionaries(
    {
        "min_input_files": st.sampled_from(["2", "3", "5"]),
        "max_snapshots_to_keep": st.sampled_from(["1", "2", "4"]),
        "min_manifests_to_rewrite": st.sampled_from(["2", "3"]),
        "partial_progress": st.sampled_from(["0", "1"]),
        "apply_deletes": st.sampled_from(["true", "true", "false"]),
    }
)
operations = st.sampled_from(
    ["all", "all,compute_statistics", "compact,rewrite_manifests", "compact,rewrite_position_deletes,expire_snapshots"]
)


def write(made: MaintainedTable, number: int, one: Write) -> None:
    paths = [entry.file for entry in made.entries() if entry.file.partition == (one.region,)]
    data = sorted(file.file_path for file in paths if file.content == 0)
    if one.kind == "append" or not data:
        made.table.append(rows_of(number * 10, one.rows, one.region))
    elif one.kind == "position":
        commit_deletes(made, [position_delete(data[-1], 0, one.region)])
    else:
        commit_deletes(made, [equality_delete(number, one.region)])


@settings(max_examples=examples(5), deadline=None, phases=[Phase.explicit, Phase.generate])
@given(history=st.lists(writes, min_size=2, max_size=7), policy=policies, asked=operations)
def test_the_pass_does_what_the_dry_run_said(history: list[Write], policy: dict[str, Any], asked: str) -> None:
    with tempfile.TemporaryDirectory() as folder, maintained_table(Path(folder)) as made:
        create_by_region(made, 1)
        for number, one in enumerate(history, 2):
            write(made, number, one)
        would = dry_run(made, asked, **policy)
        assert_agree(would, made.maintain(asked, **policy))
        made.assert_sound()
