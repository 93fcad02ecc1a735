"""What hypothesis draws for cleaning up: tables with branches, tags, rollbacks and crashes, and how they are cleaned.

As in :mod:`support.histories` a step is a verb and a seed, and does what the table that it meets allows.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

from hypothesis import strategies as st


class Act(enum.Enum):
    """What happens to a table."""

    APPEND = "append"
    UPSERT = "upsert"
    DELETE_POSITIONS = "delete positions"
    DROP_FILE = "drop a file"
    ADD_AGAIN = "add a file again"
    STAGE = "stage"
    PUBLISH = "publish"
    BRANCH = "branch"
    TAG = "tag"
    FAST_FORWARD = "fast forward"
    DROP_REF = "drop a ref"
    ROLL_BACK = "roll back"
    STATISTICS = "statistics"
    PARTITION_STATISTICS = "partition statistics"
    EVOLVE = "evolve"
    REPARTITION = "repartition"
    UPGRADE = "upgrade"
    PIN = "pin"
    STAGE_LOAD = "stage a load"
    STRAY = "leave a stray file"
    COMPACT = "compact"
    REWRITE_MANIFESTS = "rewrite manifests"
    REWRITE_DELETES = "rewrite deletes"
    COMPUTE_STATISTICS = "compute statistics"
    EXPIRE = "expire"
    SWEEP = "sweep"
    CRASH = "crash"


_OFTEN = (*(Act.APPEND,) * 5, *(Act.COMPACT, Act.REWRITE_MANIFESTS, Act.TAG, Act.BRANCH) * 2, Act.CRASH, Act.STAGE)
_WITH_DELETES = (Act.UPSERT, Act.DELETE_POSITIONS, Act.REWRITE_DELETES)


@dataclass(frozen=True, slots=True)
class CleanupStep:
    act: Act
    seed: int

    def __repr__(self) -> str:
        return f"{self.act.value} #{self.seed}"


@dataclass(frozen=True, slots=True)
class Cleaning:
    """Settings of the last expiry; ``crash_at`` kills its first attempt at that step outwards."""

    max_snapshots_to_keep: int
    young: int
    """So many of the newest snapshots are within the retention."""
    expire_limit: int | None
    retain_max: int | None
    crash_at: int | None
    cleans_metadata: bool

    @property
    def settings(self) -> dict[str, str]:
        chosen: dict[str, int | None] = {
            "max_snapshots_to_keep": self.max_snapshots_to_keep,
            "snapshot_expire_limit": self.expire_limit,
            "snapshot_retain_max": self.retain_max,
        }
        settings = {key: str(value) for key, value in chosen.items() if value is not None}
        return {**settings, "clean_expired_metadata": str(self.cleans_metadata).lower()}


@dataclass(frozen=True, slots=True)
class CleanupHistory:
    """A table from its creation on, and how it is cleaned in the end."""

    format_version: int
    is_partitioned: bool
    merges_manifests: bool
    steps: tuple[CleanupStep, ...]
    cleaning: Cleaning


def _history(seed: int) -> CleanupHistory:
    """Five to sixteen steps, the first an append."""
    chance = random.Random(seed)
    version = chance.choice((1, 2, 2, 3, 3))
    acts = [act for act in (*Act, *_OFTEN) if version > 1 or act not in _WITH_DELETES]
    chosen = [Act.APPEND, *(chance.choice(acts) for _ in range(chance.randint(4, 15)))]
    keep = chance.choice((1, 1, 2, 3))
    return CleanupHistory(
        format_version=version,
        is_partitioned=chance.random() < 0.5,
        merges_manifests=chance.random() < 0.5,
        steps=tuple(CleanupStep(act, chance.randrange(10_000)) for act in chosen),
        cleaning=Cleaning(
            max_snapshots_to_keep=keep,
            young=chance.choice((0, 0, 0, 1, 2, 4)),
            expire_limit=chance.choice((None, None, None, 1, 3)),
            retain_max=chance.choice((None, None, keep, keep + 1)),
            crash_at=chance.randint(1, 40) if chance.random() < 0.4 else None,
            cleans_metadata=chance.random() < 0.3,
        ),
    )


def cleanup_histories() -> st.SearchStrategy[CleanupHistory]:
    """One number each: hypothesis, left to draw every step, draws short histories that hardly differ."""
    return st.integers(0, 2**63).map(_history)
