"""Which rows, bounds and stored values match what must be gone: a filter as in ``where``, or a file of keys.

A row matches if an engine may say so: where engines disagree (a ``float`` and 0.1, 0.0 and -0.0), it matches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from itertools import product
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.errors import PolicyError
from icekeeper.metadata.types import FLOATS, INTEGER_BITS, UNORDERED
from icekeeper.operations.compaction.plan.predicates import FALSE, NULL, TRUE, Binding, Truth, and_, is_true, not_
from icekeeper.operations.compaction.plan.value_ranges import Column, Values, anything
from icekeeper.operations.compaction.plan.where import columns_of, parsed_filter
from icekeeper.policy.conditions import And, Comparison, Condition, Constant, IsTrue, Not, Or, Term
from icekeeper.rows.arrow_schema import column_path, fields_with, variant_ids
from icekeeper.rows.equality_deletes import comparable

Part = TypeVar("Part")
_ANY = TRUE | FALSE | NULL
Stored: TypeAlias = Mapping[int, Sequence[Values]]
"""Field id → the values of the column that metadata store: points, or the range behind a truncated bound."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What must be gone: a filter as text, or the keys of a file."""

    where: str | None = None
    column: str = ""
    """The column of the keys."""
    keys: tuple[str, ...] = ()
    sha256: str = ""
    """The digest of the file of keys."""

    @property
    def condition(self) -> str:
        """What an engine deletes by."""
        return self.where or f"{self.column} IN (the keys)"

    def to_json(self) -> dict[str, Any]:
        """The filter in a certificate."""
        if self.where is not None:
            return {"where": self.where}
        return {"column": self.column, "keys": len(self.keys), "sha256": self.sha256}


@dataclass(frozen=True)
class RowFilter:
    """The wanted rows of a table."""

    wanted: Wanted
    schema: Mapping[str, Any]
    """The table's current schema."""
    now_ms: int
    """Epoch milliseconds of ``now()`` in a filter."""

    def __reduce__(self) -> tuple[type[RowFilter], tuple[Wanted, Mapping[str, Any], int]]:
        return RowFilter, (self.wanted, self.schema, self.now_ms)

    @cached_property
    def _parsed(self) -> tuple[Truth, Condition]:
        wanted = self.wanted
        if wanted.where is not None:
            return parsed_filter(wanted.where, self.schema, self.now_ms, "--where")
        kind = next((column.kind for column in columns_of(self.schema) if column.name == wanted.column), "")
        keys: Sequence[Any] = wanted.keys
        try:
            if kind in FLOATS or kind.startswith("decimal"):
                keys = [Decimal(key) for key in keys]
            condition = Comparison(Term(wanted.column, wanted.column), "in", tuple(keys))
            truth = self._binding.truth(condition)
            return truth, condition if kind not in ("int", "long") else replace(
                condition, literals=tuple(map(int, keys))
            )
        except (ValueError, ArithmeticError) as error:
            raise PolicyError(f"--keys: {error}") from None

    @property
    def _binding(self) -> Binding:
        return Binding({column.name: column for column in columns_of(self.schema)}, self.now_ms)

    @cached_property
    def columns(self) -> Sequence[Column]:
        """The columns that the filter names."""
        names = {test.term.column for test in _tests(self._parsed[1])}
        return tuple(column for column in columns_of(self.schema) if column.name in names)

    def require_columns(self) -> None:
        """Raises PolicyError if the filter does not fit the schema, or names no column or a variant."""
        if not self.columns:
            raise PolicyError(f"{self.wanted.condition} names no column")
        if variant_ids({"fields": self.fields}):
            raise PolicyError(f"{self.wanted.condition} names a column with variants, which are not searched")

    @property
    def fields(self) -> list[dict[str, Any]]:
        """The fields to read: the columns, optional, because old files and orphans may lack them."""
        return [_optional(field) for field in fields_with(self.schema["fields"], {c.field_id for c in self.columns})]

    def count(self, batch: pa.RecordBatch, held: Collection[int]) -> int:
        """The rows that match, in a batch of :attr:`fields`; only the columns of the ids ``held`` have values.

        The other columns, which a delete file lacks, may have any value.
        """
        known = {c.field_id: _of_batch(batch, self.schema, c) for c in self.columns if c.field_id in held}
        rows = batch.num_rows

        names, binding = {column.name: column for column in self.columns}, self._binding

        def flags(known_as: int | None, unknown_as: int) -> pa.Array:
            def tested(test: Comparison) -> pa.Array:
                column = names[test.term.column]
                array = known.get(column.field_id)
                if array is None:
                    return _repeated(unknown_as, rows)
                if known_as is not None:
                    return _repeated(known_as, rows)
                listed = _listed(test, column, array)
                return _flags(binding.truth(test), column, array) if listed is None else listed

            return pc.bit_wise_and(_arrays(rows).of(self._parsed[1], tested), _TRUE)

        matching = flags(None, NULL)
        if len(known) < len(self.columns):
            others = pc.subtract(_TRUE, flags(NULL, _ANY))
            matching = pc.bit_wise_or(matching, pc.bit_wise_and(flags(None, _ANY), others))
        return int(pc.sum(matching).as_py() or 0)

    def may_match(self, values_of: Callable[[Column], Values]) -> bool:
        """Whether a row with these possible values may match."""
        return bool(self._parsed[0](values_of) & TRUE)

    def is_stored(self, stored: Stored) -> bool:
        """Whether stored values, at least one of them, are those of a row that matches.

        Columns without stored values may have any value, unless these alone make the filter true.
        """
        ids = tuple(column.field_id for column in self.columns if stored.get(column.field_id))
        if not ids:
            return False
        truths = self._truths(ids)
        for chosen in product(*(stored[field_id] for field_id in ids)):
            values = dict(zip(ids, chosen, strict=True))
            if any(truth(lambda column, v=values: v[column.field_id]) & TRUE for truth in truths):  # type: ignore[misc]
                return True
        return False

    def _truths(self, ids: tuple[int, ...]) -> Sequence[Truth]:
        """The filter if only these columns are known; it is true for some row if one of these is."""
        if ids not in self._by_ids:

            def known(as_: int | None, others: int) -> Truth:
                def tested(test: Comparison) -> Truth:
                    if self._ids[test.term.column] not in ids:
                        return _always(others)
                    return self._binding.truth(test) if as_ is None else _always(as_)

                return _TRUTHS.of(self._parsed[1], tested)

            may_be_others = known(NULL, _ANY)(anything) & TRUE
            self._by_ids[ids] = [known(None, NULL), *([] if may_be_others else [known(None, _ANY)])]
        return self._by_ids[ids]

    @cached_property
    def _by_ids(self) -> dict[tuple[int, ...], Sequence[Truth]]:
        return {}

    @cached_property
    def _ids(self) -> Mapping[str, int]:
        return {column.name: column.field_id for column in self.columns}


def _optional(field: Mapping[str, Any]) -> dict[str, Any]:
    kind = field["type"]
    if isinstance(kind, Mapping) and kind["type"] == "struct":
        kind = {**kind, "fields": [_optional(child) for child in kind["fields"]]}
    return {**field, "required": False, "type": kind}


def _tests(condition: Condition) -> Iterator[Comparison]:
    match condition:
        case Comparison():
            yield condition
        case And() | Or():
            yield from _tests(condition.left)
            yield from _tests(condition.right)
        case Not() | IsTrue():
            yield from _tests(condition.child)


class _Logic(NamedTuple, Generic[Part]):
    """How to combine what is known of conditions: functions, or arrays with a set of truth values for each row."""

    constant: Callable[[int], Part]
    both: Callable[[Part, Part], Part]
    opposite: Callable[[Part], Part]
    is_true: Callable[[Part], Part]

    def of(self, condition: Condition, tested: Callable[[Comparison], Part]) -> Part:
        match condition:
            case Comparison():
                return tested(condition)
            case Constant():
                return self.constant(NULL if condition.truth is None else TRUE if condition.truth else FALSE)
            case Not():
                return self.opposite(self.of(condition.child, tested))
            case IsTrue():
                return self.is_true(self.of(condition.child, tested))
        left, right = self.of(condition.left, tested), self.of(condition.right, tested)
        if isinstance(condition, And):
            return self.both(left, right)
        return self.opposite(self.both(self.opposite(left), self.opposite(right)))


def _always(truths: int) -> Truth:
    return lambda _: truths


# Tables of the three-valued logic over sets of truth values, which are numbers below 8.
_EIGHT, _TRUE = pa.scalar(8, pa.uint8()), pa.scalar(TRUE, pa.uint8())
_NOT = pa.array([not_(_always(a))(anything) for a in range(8)], pa.uint8())
_IS_TRUE = pa.array([is_true(_always(a))(anything) for a in range(8)], pa.uint8())
_AND = pa.array([and_(_always(a), _always(b))(anything) for a in range(8) for b in range(8)], pa.uint8())


_TRUTHS = _Logic[Truth](_always, and_, not_, is_true)


def _arrays(rows: int) -> _Logic[pa.Array]:
    return _Logic(
        lambda truths: _repeated(truths, rows),
        lambda left, right: _AND.take(pc.add(pc.multiply(left, _EIGHT), right)),
        _NOT.take,
        _IS_TRUE.take,
    )


def _repeated(truths: int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(truths, pa.uint8()), rows)


def _of_batch(batch: pa.RecordBatch, schema: Mapping[str, Any], column: Column) -> pa.Array:
    """The column in a batch of the filter's fields."""
    path = column_path(schema["fields"], column.field_id)
    names, fields = [], schema["fields"]
    for position in path or ():
        names.append(fields[position]["name"])
        kind = fields[position]["type"]
        fields = kind.get("fields", ()) if isinstance(kind, Mapping) else ()
    array = batch.column(names[0])
    for name in names[1:]:
        array = pc.struct_field(array, [name])
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _listed(test: Comparison, column: Column, array: pa.Array) -> pa.Array | None:
    """The truth values of ``=`` or ``in`` of whole numbers or text, which Arrow compares as engines do; else ``None``.

    There may be a million of them.
    """
    kind, literals = str if column.kind == "string" else int, test.literals
    is_plain = column.kind in ("int", "long", "string") and test.term.transform is None and test.kind in ("=", "in")
    if not is_plain or any(type(literal) is not kind for literal in literals):
        return None
    wanted: list[Any] = list(literals)
    if kind is int:
        limit = 1 << INTEGER_BITS[column.kind] - 1
        wanted = [number for number in wanted if -limit <= number < limit]
    is_wanted = pc.is_in(array, value_set=pa.array(wanted, array.type))
    flags = pc.if_else(is_wanted, _TRUE, pa.scalar(FALSE, pa.uint8()))
    return pc.if_else(array.is_valid(), flags, pa.scalar(NULL, pa.uint8()))


def _flags(truth: Truth, column: Column, array: pa.Array) -> pa.Array:
    """The truth values of a condition for each value of its column."""

    def of(values: Values) -> int:
        return truth(lambda _: values)

    order, runs, rows = list[pa.Array](), list[tuple[int, int]](), pa.arange(0, len(array))

    def add(mask: pa.Array, values: Values) -> None:
        order.append(rows.filter(mask))
        runs.append((len(order[-1]), of(values)))

    rest = array.is_valid()
    add(pc.invert(rest), Values(has_values=False))
    if column.kind in FLOATS:
        nans = pc.fill_null(pc.is_nan(array), False)
        add(nans, Values(has_values=False, has_nulls=False, has_nans=True))
        rest = pc.and_not(rest, nans)
    if column.kind in ("struct", "list", "map") or column.kind in UNORDERED:
        add(rest, Values(has_nulls=False))
    else:
        for group in _ordered_alike(column.kind, array, rest):
            chosen = rows.filter(group)
            values = array.take(chosen)
            ascending = pc.array_sort_indices(comparable(values))
            order.append(chosen.take(ascending))
            runs += _runs(values.take(ascending), column.kind, of)
    flags = pa.concat_arrays([_repeated(truths, count) for count, truths in runs if count] or [_repeated(0, 0)])
    return flags.take(pc.inverse_permutation(pa.concat_arrays(order).cast(pa.int32())))


def _ordered_alike(kind: str, array: pa.Array, rest: pa.Array) -> Iterator[pa.Array]:
    """Masks of rows within which all engines order the values alike (platform: java-orders-uuids-signed)."""
    if kind != "uuid":
        yield rest
        return
    values = array.cast(pa.binary())
    high, low = (pc.greater_equal(pc.binary_slice(values, n, n + 1), b"\x80") for n in (0, 8))
    for first in (high, pc.invert(high)):
        for second in (low, pc.invert(low)):
            yield pc.fill_null(pc.and_(rest, pc.and_(first, second)), False)


def _runs(values: pa.Array, kind: str, of: Callable[[Values], int]) -> Iterator[tuple[int, int]]:
    """Lengths and truth values of ascending values: a range for which all are equal is not divided further."""
    parts = [(0, len(values))] if len(values) else []
    while parts:
        start, end = parts.pop()
        low, high = raw_value(kind, values[start]), raw_value(kind, values[end - 1])
        is_one = low == high or end - start == 1
        if kind in FLOATS:  # engines disagree on the zeros
            low, high = -0.0 if low == 0.0 else low, high or 0.0
        found = of(Values(low, high, has_nulls=False))
        if is_one or found in (TRUE, FALSE, NULL):
            yield end - start, found
        else:
            middle = (start + end) // 2
            parts += [(middle, end), (start, middle)]


def point(value: Any) -> Values:
    """The only value of a column."""
    if isinstance(value, float) and value != value:
        return Values(has_values=False, has_nulls=False, has_nans=True)
    return Values(has_values=False) if value is None else Values(value, value, has_nulls=False)


def raw_value(kind: str, scalar: pa.Scalar) -> Any:
    """An Arrow value as predicates compare it: dates and times as integers, decimals unscaled."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.ExtensionScalar):
        scalar = scalar.value
    if pa.types.is_temporal(scalar.type):
        return scalar.value
    if pa.types.is_decimal(scalar.type):
        return int(scalar.as_py().scaleb(scalar.type.scale))
    return scalar.as_py()
