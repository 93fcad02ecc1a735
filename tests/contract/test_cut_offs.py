"""What every store of cut-off tables does, and how long they wait (rule 271)."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.machine.clock import HOUR_MS
from icekeeper.state.claims import CutOff, CutWork, cut_again, forget_cut, waiting_cuts
from support.examples import examples
from support.state_stores import OpenStore

ENTRY = ("C", "s3://bucket/", "ns.ä b")
PASS, LOOK = CutWork.PASS, CutWork.LOOK


def a_cut(times: int, cut_ms: int = 5, work: CutWork = PASS, entry: tuple[str, str, str] = ENTRY) -> CutOff:
    return CutOff(entry=entry, work=work, times=times, cut_ms=cut_ms, why="it took longer than job_timeout_s 60")


def test_a_table_is_cut_off_more_and_more_often_until_it_ends_in_time(open_store: OpenStore) -> None:
    store = open_store().cut_offs
    assert list(store.of_catalog(*ENTRY[:2])) == []
    why = a_cut(1).why
    assert [cut_again(store, ENTRY, PASS, why, now_ms=at).times for at in (3, 4, 5)] == [1, 2, 3]
    assert list(open_store().cut_offs.of_catalog(*ENTRY[:2])) == [a_cut(3)]
    forget_cut(store, ENTRY, LOOK)
    assert list(store.of_catalog(*ENTRY[:2])) == [a_cut(3)]
    forget_cut(store, ENTRY, PASS)
    assert list(store.of_catalog(*ENTRY[:2])) == []
    assert cut_again(store, ENTRY, PASS, why, now_ms=9) == a_cut(1, 9)


def test_each_entry_and_kind_of_work_has_its_own(open_store: OpenStore) -> None:
    """Filed under the names of the catalog, so that no UUID that a table gives itself is another one's."""
    store = open_store().cut_offs
    others = [("C", "s3://other/", "ns.t"), ("D", "s3://bucket/", "ns.t"), ("C", "s3://bucket/", "ns.u")]
    cuts = [a_cut(n, entry=entry, work=work) for n, entry in enumerate((ENTRY, *others), 1) for work in (LOOK, PASS)]
    for cut in cuts:
        store.record(cut)
    assert list(store.of_catalog("C", "s3://bucket/")) == [*cuts[6:], *cuts[:2]]
    assert list(store.of_catalog("D", "s3://bucket/")) == cuts[4:6]
    store.forget(ENTRY, LOOK)
    assert list(store.of_catalog("C", "s3://bucket/")) == [*cuts[6:], cuts[1]]


@given(times=st.integers(1, 2**31), cut_ms=st.integers(0, 2**42))
@settings(max_examples=examples(100))
def test_the_more_often_the_longer_it_waits_but_never_for_ever(times: int, cut_ms: int) -> None:
    cut = a_cut(times, cut_ms)
    waits_ms = cut.until_ms - cut_ms
    hours = {1: 3, 2: 6, 3: 12, 4: 24, 5: 48, 6: 96}.get(times, 7 * 24)
    assert waits_ms == hours * HOUR_MS
    assert [cut.waits(at) for at in (cut_ms - 1, cut.until_ms)] == [False, False]
    assert [cut.waits(at) for at in (cut_ms, cut.until_ms - 1)] == [True, True]
    assert waiting_cuts([cut, replace(cut, work=LOOK)], PASS, cut_ms) == {ENTRY[2]: cut}
