"""The linearizability checker finds every kind of anomaly, and none in a sound history."""

from __future__ import annotations

from typing import Any

import pytest

from support.linearizable import KEY, Commit, Outcome, Read, history_of, violations


def acknowledged(name: str, invoked_s: float, answered_s: float) -> Commit:
    return Commit(name, invoked_s, answered_s, Outcome.ACKNOWLEDGED)


A, B = acknowledged("a", 0, 1), acknowledged("b", 2, 3)


OVERLAPPING = [acknowledged("a", 0, 3), acknowledged("b", 2, 4)]
BETWEEN = [acknowledged("c", 0, 9), acknowledged("d", 0, 9)]
REFUSED, UNKNOWN = Commit("a", 0, 1, Outcome.REFUSED), Commit("u", 0, 1, Outcome.UNKNOWN)
LATE = Commit("u", 1.5, 1.6, Outcome.UNKNOWN)


def early(first: str, second: str) -> list[str]:
    return [f"{first} was answered before {second} was sent, but comes after it"]


@pytest.mark.parametrize(
    ("history", "commits", "reads", "expected"),
    [
        (["start", "a", "pass", "b"], [A, B], [], []),
        (["a", "b"], OVERLAPPING, [], []),
        (["b", "a"], OVERLAPPING, [], []),
        (["b"], [A, B], [], ["a was acknowledged and is not in the history"]),
        (["a"], [REFUSED], [], ["a was refused and is in the history"]),
        ([], [REFUSED], [], []),
        (["b", "a"], [A, B], [], early("a", "b")),
        (["b", "c", "d", "a"], [A, B, *BETWEEN], [], early("a", "b")),
        # A commit with unknown outcome lands at most once, at any time after it is sent.
        (["a", "b"], [A, B, UNKNOWN], [], []),
        (["u", "a", "b"], [A, B, UNKNOWN], [], []),
        (["a", "b", "u"], [A, B, UNKNOWN], [], []),
        (["u", "a"], [A, LATE], [], early("a", "u")),
        (["a", "b"], [A, B], [Read("a", 3.5, 4)], early("b", "a read of a")),
        (["a", "b"], [A, B], [Read("b", 0.5, 1.5)], early("a read of b", "b")),
        (["a", "u"], [A, LATE], [Read("u", 2, 3), Read("a", 4, 5)], early("a read of u", "a read of a")),
        (["a"], [A], [Read("x", 2, 3)], ["a read saw x, which is not in the history"]),
        (["a"], [A], [Read("a", 2, 3), Read("a", 4, 5), Read("a", 0.5, 6)], []),
    ],
)
def test_the_checker_reports_exactly_the_anomalies(
    history: list[str], commits: list[Commit], reads: list[Read], expected: list[str]
) -> None:
    assert violations(history, commits, reads) == expected


def test_a_doubled_commit_is_found_for_every_outcome() -> None:
    for outcome in Outcome:
        assert "a is in the history 2 times" in violations(["a", "b", "a"], [Commit("a", 0, 9, outcome), B])


def document(log: list[int]) -> dict[str, Any]:
    """Three snapshots; the second has no name."""
    snapshots = [
        {"snapshot-id": 7, "summary": {KEY: "a"}},
        {"snapshot-id": 8, "parent-snapshot-id": 7, "summary": {}},
        {"snapshot-id": 9, "parent-snapshot-id": 8, "summary": {KEY: "b"}},
    ]
    logged = [{"snapshot-id": snapshot_id} for snapshot_id in log]
    return {"snapshots": snapshots, "current-snapshot-id": 9, "snapshot-log": logged}


def test_a_history_is_read_from_metadata_whose_log_agrees_with_the_parents() -> None:
    assert history_of(document([7, 8, 9])) == ["a", "8", "b"]
    with pytest.raises(ValueError, match="but the parents of the head are"):
        history_of(document([7, 9]))
