"""What operations lacked is remembered with what the last pass saw, by every store."""

from __future__ import annotations

import pytest

from icekeeper.state.slack import Slack, read_slack, slack_text
from icekeeper.state.store import LastSeen
from support.state_stores import IDENTITY, OpenStore

FULL = Slack(
    snapshot_id=2**63 - 1,
    table_digest="d",
    planned_ms=5,
    run_id="r",
    data_files=((1, 200), (4, 0)),
    gains_by_removals=True,
    rests_ms=7,
    files_to_rest=3,
    rest_ms=11,
    delete_files=1,
    manifests=2,
)
BARE = Slack(snapshot_id=1, table_digest="e")


def test_slack_comes_back_as_it_was_and_goes_with_the_next_pass(open_store: OpenStore) -> None:
    seen = LastSeen(snapshot_id=1, fingerprint="f", finished_ms=9, idle=True, slack={"compact": FULL, "other": BARE})
    open_store().remember(IDENTITY, seen)
    assert open_store().last_seen(IDENTITY) == seen
    assert open_store().glance(IDENTITY, now_ms=0).last_seen == seen
    after = LastSeen(snapshot_id=1, fingerprint="f", finished_ms=10, idle=True)
    open_store().remember(IDENTITY, after)
    assert open_store().last_seen(IDENTITY) == after


@pytest.mark.parametrize(
    "text",
    [None, "", "no JSON", "[]", "7", '{"compact": 7}', '{"compact": {"of_a_later": "version"}}', '{"compact": null}'],
)
def test_what_cannot_be_read_is_not_known(text: str | None) -> None:
    assert read_slack(text) == {}


def test_what_can_be_read_beside_it_is() -> None:
    text = slack_text({"compact": BARE})
    assert read_slack(text[:-1] + ', "later": {"x": 1}}') == {"compact": BARE}
