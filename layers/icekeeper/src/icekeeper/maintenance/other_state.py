"""Warns when the state of a pass may be the wrong one: a run that it knows nothing of has maintained the table."""

from __future__ import annotations

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import newest_run
from icekeeper.pass_context.context import OperationContext
from icekeeper.state.address import STATE_VARIABLE

__all__ = ["other_state_warning"]


def other_state_warning(context: OperationContext, loaded: LoadedTable) -> tuple[str, ...]:
    """A sentence for people, or none (rule 191).

    A state that knows anything of the table is asked once, and only where a snapshot tells of a run.

    Raises:
        StorageError: the state cannot be read.
    """
    found = newest_run(loaded.metadata)
    if found is None or found[1] == context.run_id:
        return ()
    identity = context.memory.identity
    known = context.state.glance(identity, now_ms=context.clock())
    if known.last_seen or known.schedules or known.loads or known.pins or context.state.history(identity, limit=1):
        return ()
    return (
        f"run {found[1]} committed snapshot {found[0]}, and the state of this pass has seen no pass over the table: "
        f"what is pinned or staged in another state is not protected here; name that state with {STATE_VARIABLE}, "
        "unless it is lost",
    )
