"""The benchmark suite reports proofs, targets and growth as they are."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contestants import CONTESTANTS
from benchmarks.growth import exponents, growth, growth_lines
from benchmarks.measure import Cost
from benchmarks.metadata_proof import _SMALL_QUERY, _asked, plan_problem
from benchmarks.peers.environment import PeersEnvironment
from benchmarks.peers.rest_catalog import RestCatalogServer
from benchmarks.proof import Expected, NotProven, expected_rows, expected_upserts, prove
from benchmarks.report import as_json, contest_table, target_lines
from benchmarks.row import Row, Target
from benchmarks.run_rows import RowFound, Ways, run_row
from benchmarks.suite import ROWS
from benchmarks.tables.datasets import DATASETS, WARM_UP, dataset
from benchmarks.tables.deleted_rows import make_cdc
from benchmarks.tables.kept_table import KeptTable
from benchmarks.turns import Found
from icekeeper.policy.keys import POLICY_KEYS

# Growth: the exponent between the two largest scales, and what machine said so.


def _row(scale: float, cpu_s: float) -> dict[str, Any]:
    return {
        "title": "a table",
        "scale": scale,
        "rounds": 3,
        "date": "2026-11-22",
        "commit": "abc",
        "machine": {"load": 1.5},
        "entrants": {"icekeeper": {"title": "Icekeeper", "median": {"cpu_s": cpu_s, "peak_mb": 100.0}}},
    }


@pytest.mark.parametrize(
    ("costs", "exponent", "verdict"), [((1.0, 2.0, 8.0), 1.0, "met"), ((1.0, 2.0, 16.0), 1.5, "missed")]
)
def test_four_times_the_table_may_cost_four_times_as_much(
    costs: tuple[float, float, float], exponent: float, verdict: str
) -> None:
    found = growth([_row(scale, cost) for scale, cost in zip((1 / 16, 1 / 4, 1.0), costs, strict=True)])
    assert found["found"]["icekeeper"]["exponent"] == exponent
    line = list(growth_lines({"row": found}))[-1]
    assert verdict in line
    assert f"an exponent of at most {exponent} ({found['title']}), in 1 measurements" in exponents({"row": found})


# The benchmark suite tells what is so: proofs, targets, what could not be measured.  Never its times.

ROW = Row(
    "tiny",
    "a tiny table",
    WARM_UP,
    "compact",
    ("cat", "icekeeper", "polars"),
    (Target("peak_mb", "icekeeper", 1e6), Target("wall_s", "icekeeper", 0.0, "polars")),
    task={"target_bytes": 2**31},
    settings={"rewrite_all": "true"},
    most_files=1,
)


def test_a_row_is_run_proven_and_told_with_what_is_missing(tmp_path: Path) -> None:
    rest = RestCatalogServer(tmp_path / "rest")
    try:
        peers = PeersEnvironment(Path(sys.executable), {"polars==2.1.0": "no such package"})
        found = run_row(ROW, 1.0, Ways(tmp_path, peers, rest, 1, frozenset(), lambda line: None))
    finally:
        rest.close()

    told = as_json(found)
    assert told["data"]["files"] == 4
    assert told["data"]["rows"] == 8000
    proof, median = told["entrants"]["icekeeper"]["proof"], told["entrants"]["icekeeper"]["median"]
    assert proof.startswith("DuckDB: 8,000 rows, checksum as before; 1 data file(s); zstd, page index, ")
    assert (median["row_groups"], median["cpu_s"] > 0, median["scan_s"] > 0) == (1, True, True)
    assert median["cpu_s_per_gb"] == pytest.approx(median["cpu_s"] / median["output_mb"] * 1000, rel=0.01)
    assert told["entrants"]["polars"]["error"] == "polars==2.1.0 could not be installed: no such package"
    assert [target["met"] for target in told["targets"]] == [True, None]
    assert any("not measured: polars==2.1.0" in line for line in contest_table(told))


def test_a_result_with_other_rows_or_too_many_files_does_not_count(tmp_path: Path) -> None:
    """Rows of upserts are known from the files alone: DuckDB's join of them says what its Iceberg reader says."""
    make_cdc(tmp_path, 2, 400, 3, 50)
    files = [str(path) for path in (tmp_path / "data").iterdir()]
    expected = Expected(expected_upserts(files), 100, most_files=1)

    with pytest.raises(NotProven, match="5 data files are left, 1 are wanted"):  # the rows were right
        prove("table", {"metadata_location": str(tmp_path / "metadata" / "v1.metadata.json")}, expected)
    with pytest.raises(NotProven, match="DuckDB reads other rows: 400 instead of 800"):
        prove("files", {"files": [str(tmp_path / "data" / "00000.parquet")]}, expected)
    with pytest.raises(NotProven, match="DuckDB cannot read it"):
        prove("files", {"files": [str(tmp_path / "nothing.parquet")]}, expected)
    with pytest.raises(NotProven, match="1 bytes instead of 100"):
        prove("bytes", {"bytes": 1}, expected)


def test_rows_name_what_there_is() -> None:
    for row in ROWS:
        assert set(row.entrants) <= set(CONTESTANTS)
        assert {row.dataset, row.warm_up[0]} <= set(DATASETS)
        assert set(row.settings) <= set(POLICY_KEYS)
        named = {target.ours for target in row.targets} | {target.against for target in row.targets} - {None}
        assert named <= set(row.entrants)
    assert len({row.key for row in ROWS}) == len(ROWS)


# Limits in seconds or requests are for the whole table: nothing is said to be met on a part of it.

TARGETED = Row(
    "tiny",
    "a tiny table",
    WARM_UP,
    "compact",
    ("icekeeper", "java"),
    (
        Target("wall_s", "icekeeper", 60),
        Target("requests", "icekeeper", 101),
        Target("peak_mb", "icekeeper", 400),
        Target("wall_s", "icekeeper", 0.5, "java"),
    ),
)


@pytest.mark.parametrize(("scale", "met"), [(1.0, [True, True, True, True]), (0.05, [None, None, True, True])])
def test_a_limit_that_grows_with_the_table_is_judged_at_full_size_only(scale: float, met: list[bool | None]) -> None:
    ours = Found([Cost(1.0, 2.0, 3.0, 3.0, 3.0)], "right", {"requests": 29.0})
    theirs = Found([Cost(4.0, 4.0, 9.0, 1.0, 1.0)], "right")
    data = {"files": 1, "bytes": 1, "rows": 1}
    told = as_json(RowFound(TARGETED, scale, data, {"icekeeper": ours, "java": theirs}, 1))
    assert [target["met"] for target in told["targets"]] == met
    assert [target["measured"] for target in told["targets"]] == [1.0, 29.0, 3.0, 0.25]
    verdicts = [line.split("|")[-2].strip() for line in target_lines({"tiny": told})][2:]
    assert verdicts == ["only at full size" if verdict is None else "met" for verdict in met]


# Contestants take turns; who fails once has no time at all, and the others go on.


def test_a_plan_is_proven_by_its_groups(tmp_path: Path) -> None:
    """DuckDB reads which files are small, and of which partition."""
    table = dataset(tmp_path, "million_files", 0.002)
    small = _asked(table.metadata_location, _SMALL_QUERY, str(192 * 2**20))
    paths = [path for path, _, _ in small]
    totals = {"groups": 1, "files": len(small), "bytes_in": sum(size for _, _, size in small)}
    group = {"partition": f"p={small[0][1]}", "bytes_in": small[0][2]}
    answer: dict[str, Any] = {"planned_files": str(tmp_path / "planned"), "plan": {"totals": totals, "groups": [group]}}

    def problem(planned: list[str], **changed: Any) -> str | None:
        (tmp_path / "planned").write_text("\n".join(planned))
        return plan_problem(answer | {"plan": answer["plan"] | changed}, table.metadata_location, 192 * 2**20)

    assert len(small) == 200
    assert problem(paths) is None
    assert problem([*paths, paths[0]]) == "a file is planned twice, or is not small"
    assert problem(paths[5:]) == "195 files are planned, 200 are small"
    assert (
        problem(paths, totals=totals | {"files": 199}) == f"its groups have 199 files of {totals['bytes_in']:,} bytes"
    )
    much = group | {"bytes_in": 10**12}
    assert problem(paths, groups=[much]) == f"its groups have more of {group['partition']} than there is"


def test_rows_that_are_not_sorted_are_no_sort(tmp_path: Path) -> None:
    table = dataset(tmp_path, WARM_UP, 1)
    expected = dataclasses.replace(_of(table), sorted_by=("id",))
    assert prove("table", {"metadata_location": table.metadata_location}, expected).endswith("4 data file(s)")
    with pytest.raises(NotProven, match="4 of 4 data files are not sorted by user_id, at"):
        prove(
            "table",
            {"metadata_location": table.metadata_location},
            dataclasses.replace(expected, sorted_by=("user_id", "at")),
        )


def _of(table: KeptTable) -> Expected:
    return Expected(expected_rows(table.metadata_location), table.data_bytes, None)
