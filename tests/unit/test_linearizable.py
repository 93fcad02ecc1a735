"""The checker of histories finds every kind of anomaly, and nothing in a history that has none."""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.linearizable import KEY, Commit, Outcome, Read, history_of, violations


def acknowledged(name: str, invoked_s: float, answered_s: float) -> Commit:
    return Commit(name, invoked_s, answered_s, Outcome.ACKNOWLEDGED)


A, B = acknowledged("a", 0, 1), acknowledged("b", 2, 3)


def test_commits_in_their_order_are_linearizable() -> None:
    assert violations(["start", "a", "pass", "b"], [A, B]) == []


def test_overlapping_commits_may_come_in_either_order() -> None:
    commits = [acknowledged("a", 0, 3), acknowledged("b", 2, 4)]
    assert violations(["a", "b"], commits) == violations(["b", "a"], commits) == []


def test_a_lost_update_is_found() -> None:
    assert violations(["b"], [A, B]) == ["a was acknowledged and is not in the history"]


def test_a_doubled_commit_is_found_whatever_it_was_answered() -> None:
    for outcome in Outcome:
        assert "a is in the history 2 times" in violations(["a", "b", "a"], [Commit("a", 0, 9, outcome), B])


def test_a_refused_commit_that_landed_is_found() -> None:
    assert violations(["a"], [Commit("a", 0, 1, Outcome.REFUSED)]) == ["a was refused and is in the history"]
    assert violations([], [Commit("a", 0, 1, Outcome.REFUSED)]) == []


def test_an_order_against_real_time_is_found() -> None:
    assert violations(["b", "a"], [A, B]) == ["a was answered before b was sent, but comes after it"]


def test_an_order_against_real_time_is_found_over_commits_in_between() -> None:
    between = [acknowledged("c", 0, 9), acknowledged("d", 0, 9)]
    assert violations(["b", "c", "d", "a"], [A, B, *between]) == [
        "a was answered before b was sent, but comes after it"
    ]


def test_an_unknown_commit_lands_once_or_never_and_at_any_time_after_it_was_sent() -> None:
    unknown = Commit("u", 0, 1, Outcome.UNKNOWN)
    for history in (["a", "b"], ["u", "a", "b"], ["a", "b", "u"]):
        assert violations(history, [A, B, unknown]) == []
    late = Commit("u", 1.5, 1.6, Outcome.UNKNOWN)
    assert violations(["u", "a"], [A, late]) == ["a was answered before u was sent, but comes after it"]


def test_a_stale_read_is_found() -> None:
    assert violations(["a", "b"], [A, B], [Read("a", 3.5, 4)]) == [
        "b was answered before a read of a was sent, but comes after it"
    ]


def test_a_read_of_the_future_is_found() -> None:
    assert violations(["a", "b"], [A, B], [Read("b", 0.5, 1.5)]) == [
        "a read of b was answered before b was sent, but comes after it"
    ]


def test_reads_that_go_back_are_found_also_where_the_commit_is_unknown() -> None:
    unknown = Commit("u", 1.5, 1.6, Outcome.UNKNOWN)
    reads = [Read("u", 2, 3), Read("a", 4, 5)]
    assert violations(["a", "u"], [A, unknown], reads) == [
        "a read of u was answered before a read of a was sent, but comes after it"
    ]


def test_a_read_of_what_the_history_does_not_have_is_found() -> None:
    assert violations(["a"], [A], [Read("x", 2, 3)]) == ["a read saw x, which is not in the history"]


def test_reads_of_one_version_are_in_no_order() -> None:
    assert violations(["a"], [A], [Read("a", 2, 3), Read("a", 4, 5), Read("a", 0.5, 6)]) == []


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_the_definition(seed: int) -> None:
    """Of random operations: a pair is out of order exactly where the naive comparison of all pairs finds one."""
    chance = random.Random(seed)
    spans = [(start, start + chance.random() * 3) for start in (chance.random() * 5 for _ in range(8))]
    commits = [acknowledged(str(number), *span) for number, span in enumerate(spans)]
    history = sorted((commit.name for commit in commits), key=lambda name: spans[int(name)][0] + chance.random() * 3)
    naive = {
        earlier
        for place, earlier in enumerate(history)
        if any(spans[int(later)][1] < spans[int(earlier)][0] for later in history[place + 1 :])
    }
    assert {text.split(" before ")[1].split(" was sent")[0] for text in violations(history, commits)} == naive


def document(log: list[int]) -> dict[str, Any]:
    """Three snapshots, of which the second one has no name."""
    snapshots = [
        {"snapshot-id": 7, "summary": {KEY: "a"}},
        {"snapshot-id": 8, "parent-snapshot-id": 7, "summary": {}},
        {"snapshot-id": 9, "parent-snapshot-id": 8, "summary": {KEY: "b"}},
    ]
    logged = [{"snapshot-id": one} for one in log]
    return {"snapshots": snapshots, "current-snapshot-id": 9, "snapshot-log": logged}


def test_a_history_is_read_from_metadata() -> None:
    assert history_of(document([7, 8, 9])) == ["a", "8", "b"]


def test_a_snapshot_log_that_disagrees_with_the_parents_is_found() -> None:
    with pytest.raises(ValueError, match="but the parents of the head are"):
        history_of(document([7, 9]))
