"""What ``icekeeper plan`` tells of a compaction: reasons, outputs, bytes, requests, money, and what is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from icekeeper.cli.passes import plan_lines
from icekeeper.metadata.delete_scope import DeleteIndexBuilder
from icekeeper.model import EntryStatus, FileContent, LiveEntry, ManifestEntry
from icekeeper.operations.compaction.candidates import TableState
from icekeeper.operations.compaction.plan_groups import Clustering, CompactionPlan, plan_compaction
from icekeeper.operations.compaction.preview import assumptions, left_document, plan_document
from icekeeper.operations.compaction.recipe import ClusterRecipe, KeyColumn
from icekeeper.policy import Operation, Strategy
from icekeeper.report.outcome import skipped, succeeded
from support.plans import HEAD, HEAD_MS, MB, data_file, live_file, manifest, policy, table
from support.settings import policy as resolved_policy

SPEC = {"spec-id": 0, "fields": [{"name": "day", "transform": "identity", "source-id": 1, "field-id": 1000}]}
TABLE = table()


def planned(files: list[LiveEntry], deleted: dict[str, int], clustering: Clustering | None = None) -> CompactionPlan:
    builder = DeleteIndexBuilder()
    for path, rows in deleted.items():
        file = data_file(f"d-{path}", 1000, (), records=rows)
        delete = replace(file, content=FileContent.POSITION_DELETES, referenced_data_file=path)
        builder.add(0, ManifestEntry(EntryStatus.ADDED, HEAD, 60, 60, delete), is_unpartitioned=True)
    state = TableState(TABLE, TABLE.snapshots[HEAD], [manifest()], files, builder.build())
    plan = plan_compaction(state, policy(), now_ms=HEAD_MS, clustering=clustering)
    assert isinstance(plan, CompactionPlan)
    return plan


def files(*sizes: int, name: str = "f") -> list[LiveEntry]:
    return [live_file(data_file(f"{name}{i}", size * MB), age=i) for i, size in enumerate(sizes)]


def test_every_group_says_why_and_what_it_becomes() -> None:
    """Two full files of 12 times 40 MB, one large file a third of whose rows are deleted."""
    document = plan_document(planned([*files(*[40] * 12), *files(200, name="g")], {"g0": 4}), TABLE)
    shown = [{k: g[k] for k in ("reasons", "files", "outputs", "bytes_in", "bytes_out")} for g in document["groups"]]
    small = {"reasons": ["small"], "files": 6, "outputs": 1, "bytes_in": 240 * MB, "bytes_out": 240 * MB}
    large = {"reasons": ["deletes"], "files": 1, "outputs": 1, "bytes_in": 200 * MB, "bytes_out": 120 * MB}
    assert sorted(shown, key=lambda g: g["files"]) == [large, small, small]
    assert document["totals"]["files"] == 13
    assert document["totals"]["outputs"] == 3
    assert document["totals"]["bytes_in"] == 680 * MB
    assert document["totals"]["requests"] == sum(group["requests"] for group in document["groups"])
    assert document["left"] == []


def test_a_group_of_small_files_with_deletes_names_both() -> None:
    document = plan_document(planned(files(1, 1, 1, 1, 1), {"f0": 9}), TABLE)
    assert [group["reasons"] for group in document["groups"]] == [["small", "deletes"]]
    assert [group["delete_files"] for group in document["groups"]] == [1]


def test_sorted_groups_say_how_many_files_they_become() -> None:
    recipe = ClusterRecipe(Strategy.SORT, (KeyColumn(1),), 256 * MB, 192 * MB)
    document = plan_document(planned(files(*[100] * 10), {}, Clustering(recipe)), TABLE)
    assert [(group["reasons"], group["outputs"]) for group in document["groups"]] == [(["clustering"], 4)]


def test_people_read_the_same() -> None:
    document = plan_document(planned(files(*[40] * 12), {}), TABLE)
    assert list(plan_lines(document))[:3] == [
        "small: 6 file(s) into 1, 240 MB in, 240 MB out",
        "small: 6 file(s) into 1, 240 MB in, 240 MB out",
        "in all: 12 file(s) into 2, 480 MB in, 480 MB out in 2 group(s)",
    ]
    assert list(plan_lines({})) == []


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {},
            " in 200 scan(s) (expected_scans), both by AWS's list prices, whatever store this is; the settings "
            "price_per_… say others",
        ),
        (
            {"expected_scans": "7", "price_per_1000_gets": "0"},
            " in 7 scan(s) (expected_scans), both by the prices of the settings (price_per_1000_gets)",
        ),
        (
            {"expected_scans": "none"},
            " in 1 scan(s) (expected_scans), both by AWS's list prices, whatever store this is; the settings "
            "price_per_… say others",
        ),
    ],
)
def test_money_says_what_it_is_reckoned_by(settings: dict[str, str], told: str) -> None:
    document = plan_document(planned(files(*[40] * 12), {}), TABLE) | assumptions(resolved_policy(**settings))
    (line,) = (line for line in plan_lines(document) if line.startswith("takes about"))
    assert line.partition("saves readers about ")[2].partition(" ")[1:] == (" ", told.strip())


def test_the_contract_only_gets_a_field_more() -> None:
    def no_listing(name: str, paths: object) -> str:
        raise AssertionError

    plain = succeeded(Operation.COMPACT, "done").to_json("r", no_listing)
    told = replace(skipped(Operation.COMPACT, "no"), plan=left_document(())).to_json("r", no_listing)
    assert "plan" not in plain
    assert told.keys() - plain.keys() == {"plan"}
