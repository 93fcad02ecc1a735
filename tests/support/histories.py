"""What hypothesis draws: tables with their history, and policies to compact them by.

A step is a verb and a seed.  What it does depends on the table that it meets (:mod:`support.history_run`), so any list
of steps is a history and shrinking is only leaving steps out.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

FORMAT_VERSIONS = (1, 2, 2, 3, 3)
FILE_FORMATS = (("parquet",), ("parquet",), ("parquet", "avro"), ("parquet", "orc", "avro"))
STRATEGIES = ("binpack", "binpack", "sort", "zorder")

_PRIMITIVES = (
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "string",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "decimal(9, 2)",
    "decimal(20, 3)",
    "uuid",
    "fixed[3]",
    "binary",
)
_SINCE_V3 = ("timestamp_ns", "timestamptz_ns")
_NESTED = ("struct", "list", "map", "list of structs")


class Verb(enum.Enum):
    """What other engines do to a table."""

    APPEND = "append"
    UPSERT = "upsert"
    DELETE_KEYS = "delete keys"
    DELETE_POSITIONS = "delete positions"
    DROP_FILES = "drop files"
    EVOLVE = "evolve"
    REPARTITION = "repartition"
    TAG = "tag"
    ROLL_BACK = "roll back"
    UPGRADE = "upgrade"


_WITHOUT_DELETES = (
    *(Verb.APPEND,) * 4,
    *(Verb.EVOLVE,) * 2,
    Verb.DROP_FILES,
    Verb.REPARTITION,
    Verb.TAG,
    Verb.ROLL_BACK,
    Verb.UPGRADE,
)
_WITH_DELETES = _WITHOUT_DELETES + (Verb.DELETE_KEYS,) * 3 + (Verb.DELETE_POSITIONS, Verb.UPSERT) * 2
_MEANWHILE = (Verb.APPEND, Verb.DELETE_KEYS, Verb.UPSERT, Verb.DELETE_POSITIONS, Verb.DROP_FILES)


@dataclass(frozen=True, slots=True)
class Step:
    verb: Verb
    seed: int

    def __repr__(self) -> str:
        return f"{self.verb.value} #{self.seed}"


@dataclass(frozen=True, slots=True)
class History:
    """A table from its creation on; ``meanwhile`` happens between the plan and the commit of the compaction."""

    format_version: int
    column_types: tuple[str, ...]
    file_formats: tuple[str, ...]
    one_row_a_group: bool
    seed: int
    steps: tuple[Step, ...]
    meanwhile: tuple[Step, ...]

    @property
    def upgrades(self) -> bool:
        """Whether the format version changes."""
        return self.format_version < 3 and any(step.verb is Verb.UPGRADE for step in (*self.steps, *self.meanwhile))

    @property
    def schema(self) -> dict[str, Any]:
        """Java gives new ids; columns are ``c0``, ``c1``, …, the first one required."""
        ids = iter(range(1, 100))
        fields = [
            {"id": next(ids), "name": f"c{i}", "type": _json_type(kind, ids), "required": i == 0}
            for i, kind in enumerate(self.column_types)
        ]
        return {"type": "struct", "schema-id": 0, "fields": fields}


def _json_type(kind: str, ids: Any) -> Any:
    def field(name: str, primitive: str) -> dict[str, Any]:
        return {"id": next(ids), "name": name, "type": primitive, "required": False}

    if kind == "struct":
        return {"type": "struct", "fields": [field("x", "int"), field("y", "string"), field("z", "double")]}
    if kind == "list":
        return {"type": "list", "element-id": next(ids), "element": "int", "element-required": False}
    if kind == "map":
        kinds = {"key-id": next(ids), "key": "string", "value-id": next(ids), "value": "decimal(9, 2)"}
        return {"type": "map", **kinds, "value-required": False}
    if kind == "list of structs":
        element = {"type": "struct", "fields": [field("n", "int"), field("m", "date")]}
        return {"type": "list", "element-id": next(ids), "element": element, "element-required": False}
    return kind


_SEEDS = st.integers(0, 9999)


def _steps(verbs: tuple[Verb, ...], least: int, most: int) -> st.SearchStrategy[tuple[Step, ...]]:
    step = st.builds(Step, st.sampled_from(verbs), _SEEDS)
    return st.lists(step, min_size=least, max_size=most).map(tuple)


@st.composite
def histories(draw: st.DrawFn, format_versions: tuple[int, ...] = FORMAT_VERSIONS) -> History:
    """Three to twelve steps, the first an append."""
    version = draw(st.sampled_from(format_versions))
    keys = draw(st.lists(st.sampled_from(("int", "long", "string")), min_size=1, max_size=2))
    kinds = _PRIMITIVES + _NESTED + (_SINCE_V3 if version > 2 else ())
    others = draw(st.lists(st.sampled_from(kinds), max_size=4))
    verbs = _WITHOUT_DELETES if version == 1 else _WITH_DELETES
    happens = draw(st.integers(0, 2)) == 0
    meanwhile = draw(_steps(tuple(v for v in _MEANWHILE if v in verbs), 1, 2)) if happens else ()
    first = Step(Verb.APPEND, draw(_SEEDS))
    steps = draw(_steps(verbs, 2, 11))
    formats = draw(st.sampled_from(FILE_FORMATS))
    narrow = draw(st.booleans())
    return History(version, (*keys, *others), formats, narrow, draw(_SEEDS), (first, *steps), meanwhile)


@st.composite
def policies(draw: st.DrawFn) -> dict[str, str]:
    """Settings of one compaction; targets so small that a partition becomes several files.

    What to sort by is chosen when the table is there (:meth:`support.history_run.HistoryRun.fitted`).
    """
    settings = {
        "strategy": draw(st.sampled_from(STRATEGIES)),
        "proof": draw(st.sampled_from(("counts", "full"))),
        "rewrite_all": draw(st.sampled_from(("true", "false"))),
        "min_input_files": draw(st.sampled_from(("2", "3"))),
        "target_file_size_mb": draw(st.sampled_from(("256", "256", "0.004", "0.002"))),
        "output_spec": draw(st.sampled_from(("current", "keep"))),
        "partial_progress": draw(st.sampled_from(("0", "1", "2"))),
        "min_row_group_copy_bytes": draw(st.sampled_from(("1", "1", "none"))),
    }
    if draw(st.integers(0, 3)) == 0:
        settings["max_files_to_rewrite"] = draw(st.sampled_from(("3", "5")))
    if draw(st.integers(0, 3)) == 0:
        settings["delete_compaction_min_deletes"] = "2"
    return settings
