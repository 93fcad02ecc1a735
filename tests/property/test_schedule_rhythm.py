"""No schedule starves: whatever the others are, a run an hour carries out each one soon after it is due."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.machine.clock import HOUR_MS
from icekeeper.policy import ALL_OPERATIONS, layers_for, resolve
from icekeeper.policy.due import due_parts, in_one_pass, next_count_ms
from icekeeper.state.store import ScheduleRun
from support.examples import examples

MINUTE_MS = 60_000
T0 = 1_767_225_600_000
OPERATIONS = st.lists(st.sampled_from([one.value for one in ALL_OPERATIONS]), min_size=1, max_size=4, unique=True)
SCHEDULES = st.lists(st.tuples(st.integers(30, 1800), OPERATIONS), min_size=1, max_size=5)


@settings(max_examples=examples(40), deadline=None)
@given(schedules=SCHEDULES, jitter=st.lists(st.integers(0, 5 * MINUTE_MS), min_size=7, max_size=7))
def test_every_schedule_keeps_its_rhythm(schedules: list[tuple[int, list[str]]], jitter: list[int]) -> None:
    table = {}
    for number, (minutes, operations) in enumerate(schedules):
        table[f"icekeeper.schedules.s{number}.interval"] = f"{minutes}m"
        table[f"icekeeper.schedules.s{number}.operations"] = ",".join(operations)
    resolved = resolve(layers_for(table, {}, {}))
    runs: dict[str, ScheduleRun] = {}
    turns = dict.fromkeys(resolved.schedules, 0)
    hours = 100
    for hour in range(hours):
        now_ms = T0 + hour * HOUR_MS + jitter[hour % len(jitter)]
        due = due_parts(resolved, runs, now_ms)
        chosen = in_one_pass(due)
        taken = [operation for part in chosen for operation in part.operations]
        assert len(taken) == len(set(taken))
        for part in due:
            # Others that are due for longer go first, each of them once.
            assert part.schedule is None or hour == 0 or now_ms - (part.due_ms or T0) <= (len(schedules) + 1) * HOUR_MS
        for part in chosen:
            if part.schedule is None:
                continue
            last, interval_ms = runs.get(part.schedule), resolved.schedules[part.schedule].interval_ms
            assert last is None or now_ms >= last.counted_ms + interval_ms
            counted_ms = next_count_ms(interval_ms, last, now_ms)
            assert now_ms - interval_ms // 2 <= counted_ms <= now_ms
            runs[part.schedule] = ScheduleRun(
                schedule=part.schedule,
                counted_ms=counted_ms,
                finished_ms=now_ms,
                snapshot_id=1,
                fingerprint="",
                idle=False,
            )
            turns[part.schedule] += 1
    for name, count in turns.items():
        # Not more often than asked for, and, where nothing else wants its operations, as often.
        interval_ms = resolved.schedules[name].interval_ms
        own = set(resolved.schedules[name].resolved.policy.operations)
        others = [one.resolved.policy.operations for other, one in resolved.schedules.items() if other != name]
        assert count <= 1 + hours * HOUR_MS * 2 // interval_ms
        if all(own.isdisjoint(operations) for operations in others):
            assert count >= hours * HOUR_MS // max(interval_ms, HOUR_MS) * 0.9 - 1
