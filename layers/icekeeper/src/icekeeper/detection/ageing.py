"""How long tables wait for a pass, and which come first where a scan may not propose them all (pure).

By need alone, a hundred tables whose passes cannot help them would be chosen by every scan, and no other table ever.
So a table rises with the time since its last pass: after a day it comes before any that had one just now.
"""

from __future__ import annotations

from collections.abc import Iterable

from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata

__all__ = ["urgency", "waited_ms"]

_DAY_MS = 24 * HOUR_MS
# Who waits longer waits no more urgently: then need decides again, as in a fleet that is scanned for the first time.
_LONGEST_DAYS = 7


def waited_ms(metadata: TableMetadata, passes_ms: Iterable[int], now_ms: int) -> int:
    """Milliseconds since the last pass, of which ``passes_ms`` has the ends; without any, since the oldest snapshot."""
    oldest_ms = min(metadata.snapshot_times_ms, default=now_ms)
    return max(0, now_ms - max(passes_ms, default=oldest_ms))


def urgency(priority: float, waited_ms: int) -> float:
    """The need of a table (0 to 1) and a whole point for each day that it waited; what is higher is chosen first."""
    return priority + min(waited_ms / _DAY_MS, _LONGEST_DAYS)
