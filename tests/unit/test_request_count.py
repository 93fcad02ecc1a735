"""Requests are counted for the work that caused them, in whatever thread or process it is done."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.machine.metering import RequestKind, WorkThreads, counting, joined_count, note_request
from icekeeper.pass_context.context import CountedEngine
from icekeeper.report.outcome import request_metrics
from support.source_tree import MODULES

GET, PUT = RequestKind.GET, RequestKind.PUT
# They begin work of their own, such as a pass, which counts for itself.
OWN_WORK = {"icekeeper.machine.metering", "icekeeper.cycle.service"}


def sends(number: int) -> int:
    note_request(GET, number)
    return -number


def split(task: int) -> Iterator[tuple[int, int]]:
    for item in range(task):
        note_request(GET)
        yield item % 2, item


def merge(part: int, items: Iterator[int]) -> list[int]:
    note_request(PUT)
    return sorted(items)


def leaves_all(part: int, items: Iterator[int]) -> int:
    return part


def test_a_count_has_what_was_sent_inside_of_its_block_only() -> None:
    note_request(GET)  # for nobody
    with counting() as around:
        note_request(GET)
        with counting() as inside:
            note_request(PUT, 3)
        with joined_count() as joined:
            note_request(RequestKind.DELETE)
    assert joined is around
    assert inside.counts == {PUT: 3}
    assert around.counts == {GET: 1, RequestKind.DELETE: 1}


def test_threads_count_for_whoever_gave_them_their_work() -> None:
    with WorkThreads(4) as pool:
        with counting() as first:
            assert list(pool.map(sends, range(20))) == [-number for number in range(20)]
        with counting() as second:
            assert pool.submit(sends, 7).result() == -7
    assert (first.counts, second.counts) == ({GET: 190}, {GET: 7})


def test_no_room_starts_threads_that_count_for_nobody() -> None:
    """Else what they send would be missing in the metrics, and nobody would see it."""
    starting = {
        name
        for name, path in MODULES.items()
        if any(
            isinstance(node, ast.Name) and node.id == ThreadPoolExecutor.__name__
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }
    assert starting == OWN_WORK


def test_what_workers_send_comes_back_with_their_results() -> None:
    engine = CountedEngine(LocalEngine(1))
    with counting() as count:
        assert engine.map(sends, [1, 2, 3], lambda done: None) == [-1, -2, -3]
        assert engine.exchange(split, [3, 4], merge, [0, 1], lambda done: None) == [[0, 0, 2, 2], [1, 1, 3]]
    assert count.counts == {GET: 6 + 7, PUT: 2}
    with counting() as count:
        assert engine.exchange(split, [3], leaves_all, [0, 1], lambda done: None) == [0, 1]
    assert count.counts == {GET: 3}
    assert engine.name == "local"


def test_counted_work_can_be_sent_to_workers() -> None:
    sent = []

    class Remote:
        name = "remote"

        def map(self, function: object, tasks: object, on_done: object) -> list[object]:
            sent.append(pickle.loads(pickle.dumps(function)))
            return [sent[-1](task) for task in tasks]  # type: ignore[attr-defined]  # whatever the engine was given

    with counting() as count:
        assert CountedEngine(Remote()).map(sends, [5], lambda done: None) == [-5]  # type: ignore[arg-type]  # one method
    assert count.counts == {GET: 5}


def test_metrics_have_no_zeros() -> None:
    assert request_metrics("compact", {GET: 3, PUT: 0, RequestKind.CATALOG: 1}) == {
        "compact.get_requests": 3,
        "compact.catalog_requests": 1,
    }
