"""Choose the recipe by which rows are clustered: strategy, columns, target size (pure).

The state records the snapshots that committed clustered files under the canonical text of their recipe.
The text names field ids, so renaming a column does not change it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from icekeeper.errors import PolicyError, TableUnsupported
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.transforms import applies
from icekeeper.metadata.types import UNORDERED
from icekeeper.model import LiveEntry
from icekeeper.policy import Policy, Strategy
from icekeeper.policy.values import did_you_mean, parse_sort_order
from icekeeper.rows.arrow_schema import LeafColumn, leaf_columns

# With more columns, a curve has fewer than two bits per column and almost no effect.
MAX_ZORDER_COLUMNS = 31
# The sort keys of a range need memory besides its rows, and more columns hardly change the order.
MAX_SORT_COLUMNS = 32


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a sort order; ``transform`` is spelled as in table metadata."""

    field_id: int
    transform: str = "identity"
    descending: bool = False
    nulls_first: bool = True

    def __str__(self) -> str:
        direction, nulls = "desc" if self.descending else "asc", "first" if self.nulls_first else "last"
        return f"{self.field_id} {self.transform} {direction} nulls-{nulls}"


@dataclass(frozen=True, slots=True)
class ClusterRecipe:
    """The order of rows: sorted by columns, or along a z-order curve through them."""

    strategy: Strategy
    columns: tuple[KeyColumn, ...]
    target_bytes: int
    """The target size of output files."""
    smallest_bytes: int
    """The least size of output files; smaller files would be candidates again."""
    order_id: int | None = None
    """The id of the table's sort order, if the recipe is that order."""

    def output_count(self, total_bytes: float) -> int:
        """The number of files for ``total_bytes``: of about the target size, and none below the smallest.

        Along a curve it is a power of two, so that the bounds of files do not overlap.
        """
        most = int(total_bytes / self.smallest_bytes)
        if self.strategy is Strategy.ZORDER:
            return 1 << max(0, most.bit_length() - 1)
        return max(1, min(round(total_bytes / self.target_bytes), most))

    @property
    def text(self) -> str:
        """The canonical text; equal for two recipes exactly if they have the same order of rows and target size."""
        columns = ", ".join(str(c) if self.strategy is Strategy.SORT else str(c.field_id) for c in self.columns)
        return f"{self.strategy.value}({columns}) target={self.target_bytes}"


def choose_recipe(metadata: TableMetadata, policy: Policy) -> ClusterRecipe | None:
    """The recipe that a policy sets for a table; ``None``: files are merged without sorting (binpack).

    Strategy ``auto`` sorts by the table's order if the table has an order that this version can apply, and merges
    otherwise.

    Raises:
        PolicyError: there is no sort order to apply, or the order names a column that cannot be used.
        TableUnsupported: the table's own order cannot be applied.
    """
    orders = policy.sort_order is not None or metadata.default_sort_order_fields
    if policy.strategy is Strategy.BINPACK or (policy.strategy is Strategy.AUTO and not orders):
        return None  # without reading the schema, which is slow for wide tables
    columns = {leaf.name: leaf for leaf in leaf_columns(metadata.current_schema) if not leaf.repeated}
    sizes = policy.target_file_size_bytes, policy.min_file_size_bytes
    if policy.strategy is Strategy.ZORDER:
        return ClusterRecipe(Strategy.ZORDER, _curve(metadata, columns, policy.sort_order), *sizes)
    if policy.sort_order is not None:
        return ClusterRecipe(Strategy.SORT, _by_policy(columns, policy.sort_order), *sizes)
    try:
        by_table = _by_table(metadata, columns.values())
    except TableUnsupported:
        if policy.strategy is Strategy.AUTO:
            return None
        raise
    if by_table:
        return ClusterRecipe(Strategy.SORT, by_table, *sizes, metadata.default_sort_order_id)
    if policy.strategy is Strategy.SORT:
        raise PolicyError(
            "strategy sort needs an order and the table has none; set sort_order, for example sort_order=id, or give "
            "the table a sort order"
        )
    return None


def table_recipe(metadata: TableMetadata, policy: Policy) -> ClusterRecipe | None:
    """The recipe of the table's own sort order; ``None``: it has no order that can be applied, or the policy sets
    another order."""
    if policy.strategy is Strategy.ZORDER or policy.sort_order is not None:
        return None
    return choose_recipe(metadata, policy.model_copy(update={"strategy": Strategy.AUTO}))


def has_order(live: LiveEntry, metadata: TableMetadata, clustered_by: Container[int], order_id: int | None) -> bool:
    """Whether a snapshot of ``clustered_by`` added the file, or the file of an expired snapshot claims ``order_id``."""
    entry = live.entry
    claims_it = entry.file.sort_order_id == order_id is not None and entry.snapshot_id not in metadata.snapshots
    return claims_it or entry.snapshot_id in clustered_by


def _curve(metadata: TableMetadata, columns: Mapping[str, LeafColumn], text: str | None) -> tuple[KeyColumn, ...]:
    """The columns of a z-order curve: those of the policy, else those of the table's sort order, as in S3 Tables
    (Amazon S3 user guide, "Maintenance for tables")."""
    keys = _by_table(metadata, columns.values()) if text is None else _by_policy(columns, text)
    if not keys:
        raise PolicyError(
            "strategy zorder needs columns and the table has no sort order; set sort_order, for example sort_order=a,b"
        )
    chosen = tuple(dict.fromkeys(KeyColumn(key.field_id) for key in keys))
    if text is not None and chosen != keys:
        raise PolicyError(
            "strategy zorder takes plain columns, each once and without direction or transform, but sort_order is "
            f"'{text}'"
        )
    if len(chosen) > MAX_ZORDER_COLUMNS:
        raise PolicyError(
            f"strategy zorder has {len(chosen)} columns; at most {MAX_ZORDER_COLUMNS} are allowed, and 2 to 4 work best"
        )
    return chosen


def _by_policy(columns: Mapping[str, LeafColumn], text: str) -> tuple[KeyColumn, ...]:
    keys = []
    for term in parse_sort_order(text):
        leaf = _column(columns, term.column, "sort_order")
        if not applies(term.transform, leaf.iceberg_type):
            raise PolicyError(
                f"sort_order: {term.transform} cannot be applied to column {leaf.name} of type {leaf.iceberg_type}"
            )
        keys.append(KeyColumn(leaf.field_id, term.transform, term.descending, term.nulls_first))
    if len(keys) > MAX_SORT_COLUMNS:
        raise PolicyError(f"sort_order names {len(keys)} columns; at most {MAX_SORT_COLUMNS} are allowed")
    return tuple(keys)


def _by_table(metadata: TableMetadata, columns: Any) -> tuple[KeyColumn, ...]:
    """The columns of the default sort order, without those under a void transform, which have no order."""
    by_id = {leaf.field_id: leaf for leaf in columns}
    keys = []
    for field in metadata.default_sort_order_fields:
        sources = field.get("source-ids") or [field.get("source-id")]
        if field["transform"] == "void":
            continue
        leaf = by_id.get(sources[0])
        if len(sources) != 1 or leaf is None or not applies(field["transform"], leaf.iceberg_type):
            raise TableUnsupported(
                f"the table's sort order has {field['transform']} of column {sources}, which this version of Icekeeper "
                "cannot apply; set sort_order or strategy=binpack"
            )
        nulls_first = field["null-order"] == "nulls-first"
        keys.append(KeyColumn(leaf.field_id, field["transform"], field["direction"] == "desc", nulls_first))
    if len(keys) > MAX_SORT_COLUMNS:
        raise TableUnsupported(
            f"the table's sort order has {len(keys)} columns; at most {MAX_SORT_COLUMNS} can be applied; "
            "set sort_order or strategy=binpack"
        )
    return tuple(keys)


def _column(columns: Mapping[str, LeafColumn], name: str, key: str) -> LeafColumn:
    leaf = columns.get(name)
    if leaf is None:
        raise PolicyError(
            f"{key} names column '{name}', which does not exist in the table or cannot be "
            f"sorted{did_you_mean(name, columns)}; its columns are {', '.join(columns)}"
        )
    if leaf.iceberg_type.partition("(")[0] in UNORDERED:
        raise PolicyError(f"{key} names column '{name}' of type {leaf.iceberg_type}, which cannot be sorted")
    return leaf
