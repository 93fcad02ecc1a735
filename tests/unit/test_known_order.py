"""Which files count as clustered when the state is lost and the snapshot that says so has expired (rule 53)."""

from __future__ import annotations

from typing import Any

from icekeeper.metadata.document import TableMetadata
from icekeeper.model import Nothing
from icekeeper.operations.compaction.candidates import TableState
from icekeeper.operations.compaction.plan_groups import Clustering, plan_compaction
from icekeeper.operations.compaction.recipe import choose_recipe
from support.plans import HEAD, HEAD_MS, MB, data_file, live_file, manifest, policy, table

ORDER: dict[str, Any] = {
    "order-id": 3,
    "fields": [{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}],
}
ORDERED = TableMetadata({**table().document, "sort-orders": [ORDER], "default-sort-order-id": 3})
EXPIRED = 5


def taken(order_id: int | None, added_by: int, **settings: object) -> int:
    """How many of five large files a plan takes that has no memory of what was clustered."""
    chosen = policy(**settings)
    recipe = choose_recipe(ORDERED, chosen)
    assert recipe is not None
    files = [
        live_file(data_file(f"f{n}", 300 * MB, sort_order_id=order_id), age=n, snapshot_id=added_by) for n in range(5)
    ]
    state = TableState(ORDERED, ORDERED.snapshots[HEAD], [manifest()], files)
    planned = plan_compaction(state, chosen, now_ms=HEAD_MS, clustering=Clustering(recipe))
    return 0 if isinstance(planned, Nothing) else len(planned.input_files)


def test_files_of_expired_snapshots_that_claim_the_tables_order_are_clustered() -> None:
    """Without them the whole table would be sorted once more (rule 53)."""
    assert taken(3, EXPIRED) == 0
    assert taken(None, EXPIRED) == taken(2, EXPIRED) == 5


def test_a_snapshot_that_is_there_says_itself_whether_it_clustered() -> None:
    """Writers that do not sort claim the table's order too."""
    assert taken(3, HEAD) == 5


def test_another_order_than_the_tables_is_claimed_by_no_file() -> None:
    assert taken(3, EXPIRED, sort_order="id desc") == 5
