"""A dry run names a sort order that no file of the table has yet, and what it would cost to sort what is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.transforms import IdentityTransform

from icekeeper.cli.passes import plan_lines
from icekeeper.policy import Operation
from support.maintained_table import MaintainedTable, maintained_table


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Two files that were written before the table got its sort order: too few to be merged and sorted."""
    with maintained_table(tmp_path) as made:
        made.create()
        made.fill(2)
        with made.table.update_sort_order() as update:
            update.asc("id", IdentityTransform())
        yield made


def settings(table: MaintainedTable, **policy: str) -> list[dict[str, Any]]:
    plan = table.run(Operation.COMPACT, dry_run=True, **{"min_input_files": "5", **policy}).plan or {}
    return list(plan.get("settings", ()))


@pytest.mark.parametrize(
    ("strategy", "how"), [("auto", "rewrite_all=true"), ("binpack", "strategy=sort, rewrite_all=true")]
)
def test_a_new_sort_order_is_named_with_its_cost(table: MaintainedTable, strategy: str, how: str) -> None:
    size = sum(file.file_size_in_bytes for file in table.data_files())
    (lacking,) = settings(table, strategy=strategy)
    assert {key: lacking[key] for key in ("reason", "sampled", "lacking", "files", "bytes", "how")} == {
        "reason": "sort_order",
        "sampled": 2,
        "lacking": 2,
        "files": 2,
        "bytes": size,
        "how": how,
    }
    assert lacking["cost_usd"] > 0
    (line,) = plan_lines({"settings": [lacking]})
    assert line.startswith(f"2 of 2 file(s) looked at lack the table's sort order: {how} would rewrite about ")


def test_it_is_not_named_once_files_are_sorted_or_about_to_be(table: MaintainedTable) -> None:
    assert settings(table, rewrite_all="true") == []  # this plan sorts them
    assert settings(table, strategy="zorder", zorder_columns="id,part") == []  # another order is wanted
    table.run(Operation.COMPACT, rewrite_all="true")
    assert settings(table) == []
    table.append(99)
    assert settings(table) == []  # it waits for others, as every new file does
