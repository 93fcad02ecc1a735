"""Apply the table properties ``write.*`` to new files: Parquet options and metrics modes.

Sources: Java's ``TableProperties`` and ``MetricsConfig`` (1.10).
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from icekeeper.errors import PolicyError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.entry_columns import metric_of
from icekeeper.metadata.types import decode
from icekeeper.model import DataFile
from icekeeper.policy.values import RewriteReason
from icekeeper.rows.arrow_schema import LeafColumn, leaf_columns

if TYPE_CHECKING:
    import pyarrow.parquet as pq

log = logging.getLogger(__name__)

_PARQUET = "write.parquet."
# TableProperties: PARQUET_*_DEFAULT
_ROW_GROUP_BYTES = 128 * 1024 * 1024
_PAGE_BYTES = 1024 * 1024
_PAGE_ROWS = 20_000
_DICTIONARY_BYTES = 2 * 1024 * 1024
_CODEC = "zstd"
_BLOOM_FPP = 0.01
_BLOOM_MAX_BYTES = 1024 * 1024

# Arrow writes LZ4 only as LZ4_RAW: the older LZ4 framing is deprecated (Parquet format, "Compression").
_CODECS = {
    "zstd": "zstd",
    "gzip": "gzip",
    "snappy": "snappy",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "brotli": "brotli",
    "uncompressed": "none",
}
_LEVELS = {"zstd": range(1, 23), "gzip": range(10), "brotli": range(12)}
_DEFAULT_LEVELS = {"zstd": 3, "gzip": 6}
"""The defaults of parquet-java, because Iceberg sets none; Arrow's defaults are 1 and 9."""

# Limits of properties that would make maintenance too expensive, because of their cost in
# Arrow (platform: arrow-costly-properties).
_LEAST_PAGE_ROWS = 1000
_MOST = 2**31 - 1
_HIGHEST_LEVEL = {"zstd": 12, "brotli": 9}
_LEAST_FPP = 1e-6
# The filters of all columns of a row group are in memory together.
_BLOOM_TOTAL_BYTES = 128 * 1024 * 1024


def bounded(properties: Mapping[str, str]) -> dict[str, str]:
    """A table's properties within cost limits; malformed properties stay unchanged."""
    found = dict(properties)
    pages = found.get(f"{_PARQUET}page-row-limit", "")
    if _is_whole(pages):
        found[f"{_PARQUET}page-row-limit"] = str(max(int(pages), _LEAST_PAGE_ROWS))
    level, codec = found.get(f"{_PARQUET}compression-level", ""), _named_codec(found)
    if codec in _HIGHEST_LEVEL and _is_whole(level) and int(level) in _LEVELS[codec]:
        found[f"{_PARQUET}compression-level"] = str(min(int(level), _HIGHEST_LEVEL[codec]))
    for key in found:
        if key.startswith(f"{_PARQUET}bloom-filter-fpp.column.") and 0 < _number(found[key]) < _LEAST_FPP:
            found[key] = str(_LEAST_FPP)
    return found


def row_group_bytes(properties: Mapping[str, str]) -> int:
    """The target size of row groups in encoded bytes.

    Raises:
        PolicyError: the property is not a positive integer.
    """
    return _int(properties, "row-group-size-bytes", _ROW_GROUP_BYTES)


def codec_name(properties: Mapping[str, str]) -> str:
    """The codec of ``write.parquet.compression-codec``, in lower case.

    Raises:
        PolicyError: the codec is unknown.
    """
    codec = _named_codec(properties)
    if codec not in _CODECS:
        raise PolicyError(f"table property {_PARQUET}compression-codec is '{codec}'; allowed: {', '.join(_CODECS)}")
    return codec


def dictionary_bytes(properties: Mapping[str, str]) -> int:
    """The largest size of a dictionary in bytes.

    Raises:
        PolicyError: the property is not a positive integer.
    """
    return _int(properties, "dict-size-bytes", _DICTIONARY_BYTES)


def for_sample(properties: Mapping[str, str], share: float) -> dict[str, str]:
    """Properties with which a sample of that share of the rows compresses like all rows.

    Values that do not fit into the dictionary are stored plainly.  A sample has fewer distinct values, so its
    dictionary gets the same share of the size.
    """
    limit = int(dictionary_bytes(properties) * min(1.0, share))
    return {**properties, f"{_PARQUET}dict-size-bytes": str(max(1, limit))}


def writer_options(
    properties: Mapping[str, str],
    leaves: Sequence[LeafColumn],
    group_rows: int,
    unmeasured: Container[int] = (),
    without_dictionary: Container[str] = (),
) -> dict[str, Any]:
    """Keyword arguments of ``ParquetWriter``; ``group_rows`` is the estimated number of rows of a row group.

    ``unmeasured`` are the ids of columns without statistics, besides those that never have statistics;
    ``without_dictionary`` are the Parquet paths of columns without a dictionary.

    Raises:
        PolicyError: a property is malformed.
    """
    codec = codec_name(properties)
    options: dict[str, Any] = {
        "compression": _CODECS[codec],
        "compression_level": _level(properties, codec),
        "data_page_size": _int(properties, "page-size-bytes", _PAGE_BYTES),
        "max_rows_per_page": _int(properties, "page-row-limit", _PAGE_ROWS),
        "dictionary_pagesize_limit": dictionary_bytes(properties),
        "use_dictionary": _paths([leaf for leaf in leaves if leaf.parquet_path not in without_dictionary], leaves),
        "write_page_index": True,
        "write_page_checksum": True,
        "write_statistics": _paths(
            [leaf for leaf in leaves if leaf.has_bounds and leaf.field_id not in unmeasured], leaves
        ),
        "store_decimal_as_integer": True,
        "store_schema": False,
    }
    filters = _bloom_filters(properties, leaves, group_rows)
    return options | ({"bloom_filter_options": filters} if filters else {})


def _paths(some: Sequence[LeafColumn], leaves: Sequence[LeafColumn]) -> bool | list[str]:
    """The Parquet paths of some of the leaf columns; ``True`` for all."""
    return [leaf.parquet_path for leaf in some] if len(some) < len(leaves) else True


def _level(properties: Mapping[str, str], codec: str) -> int | None:
    """The compression level; ``None``: the codec has no levels, or Arrow's default applies."""
    text = properties.get(f"{_PARQUET}compression-level")
    if not text or text == "null" or codec not in _LEVELS:  # Java writes "null" if no level is set
        return _DEFAULT_LEVELS.get(codec)
    allowed = _LEVELS[codec]
    if not _is_whole(text) or int(text) not in allowed:
        raise PolicyError(
            f"table property {_PARQUET}compression-level is '{text}'; {codec} has levels {allowed[0]} to {allowed[-1]}"
        )
    return int(text)


def _bloom_filters(
    properties: Mapping[str, str], leaves: Sequence[LeafColumn], group_rows: int
) -> dict[str, dict[str, Any]]:
    """Bloom filter options by Parquet column path; as in Java, booleans, variants and unknown columns get none."""
    filtered = [
        leaf
        for leaf in leaves
        if leaf.iceberg_type not in ("boolean", "variant")
        and properties.get(f"{_PARQUET}bloom-filter-enabled.column.{leaf.name}", "").strip().lower() == "true"
    ]
    most = min(
        _int(properties, "bloom-filter-max-bytes", _BLOOM_MAX_BYTES), _BLOOM_TOTAL_BYTES // max(1, len(filtered))
    )
    filters = {}
    for leaf in filtered:
        key = f"{_PARQUET}bloom-filter-fpp.column.{leaf.name}"
        text = properties.get(key)
        fpp = _BLOOM_FPP if text is None else _number(text)
        if not 0 < fpp < 1:
            raise PolicyError(f"table property {key} is '{text}', which is not between 0 and 1")
        filters[leaf.parquet_path] = {"ndv": min(group_rows, _most_distinct(most, fpp)), "fpp": fpp}
    return filters


def _most_distinct(max_bytes: int, fpp: float) -> int:
    """The number of distinct values for ``max_bytes``; filter sizes are powers of two (Parquet format, "Bloom
    Filter")."""
    bits = 8 * 2 ** int(math.log2(max(max_bytes, 32)))
    # The format's formula m = -8·n / ln(1 - fpp^(1/8)), solved for n; rounding down leaves room.
    return max(1, int(bits * -math.log(1 - fpp ** (1 / 8)) / 8) - 1)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _is_whole(text: str) -> bool:
    """Whether the text is a whole number of about 64 bits, as in Java."""
    return text.isascii() and text.isdecimal() and len(text) <= 19


def _named_codec(properties: Mapping[str, str]) -> str:
    return (properties.get(f"{_PARQUET}compression-codec") or _CODEC).lower()


def _int(properties: Mapping[str, str], key: str, default: int) -> int:
    text = properties.get(f"{_PARQUET}{key}")
    if text is None:
        return default
    if not _is_whole(text) or int(text) < 1:
        raise PolicyError(f"table property {_PARQUET}{key} is '{text}', which is not a positive integer")
    return min(int(text), _MOST)


# Arrow's name of a codec → its name in footers, if that is not the same name in capitals.
_FOOTER_NAMES = {"none": "UNCOMPRESSED", "lz4": "LZ4"}

WantedSettings: TypeAlias = tuple[str, frozenset[str]]
"""The settings with which a rewrite would write a table's files now: the codec's name in footers, and the Parquet paths
of the columns that have a Bloom filter."""


def settings_lacking(footer: pq.FileMetaData, wanted: WantedSettings) -> frozenset[RewriteReason]:
    """The settings that a file with this footer does not meet; a column that the file lacks needs no filter."""
    codec, bloom_columns = wanted
    chunks = [
        footer.row_group(group).column(column)
        for group in range(footer.num_row_groups)
        for column in range(footer.num_columns)
    ]
    found = set()
    if any(not chunk.compression.startswith(codec) for chunk in chunks):
        found.add(RewriteReason.CODEC)
    if any(chunk.path_in_schema in bloom_columns and not chunk.bloom_filter_length for chunk in chunks):
        found.add(RewriteReason.BLOOM)
    return frozenset(found)


def wanted_settings(schema: Mapping[str, Any], properties: Mapping[str, str]) -> WantedSettings:
    """The settings that follow from a table's schema and properties.

    Raises:
        PolicyError: a property is malformed.
    """
    options = writer_options(properties, leaf_columns(schema), 1)
    codec = str(options["compression"])
    filters = options.get("bloom_filter_options", {})
    return _FOOTER_NAMES.get(codec, codec.upper()), frozenset(filters)


# TableProperties.DEFAULT_WRITE_METRICS_MODE_DEFAULT, METRICS_MAX_INFERRED_COLUMN_DEFAULTS_DEFAULT
_DEFAULT_MODE = "truncate(16)"
_MAX_INFERRED_DEFAULT = 100
_METRICS = "write.metadata.metrics."


def metrics_modes(schema: Mapping[str, Any], properties: Mapping[str, str]) -> dict[int, str]:
    """The metrics mode of every leaf column by field id: ``none``, ``counts``, ``truncate(n)`` or ``full``.

    Without an explicit default only the first ``write.metadata.metrics.max-inferred-column-defaults`` columns are
    measured.  A malformed mode falls back to the default.
    """
    leaves = leaf_columns(schema)
    default = _default_mode(properties, len(leaves))
    modes = {leaf.field_id: default for leaf in leaves}
    if default == "none" and f"{_METRICS}default" not in properties:
        first = list(_shallow_first(schema["fields"]))[: _limit(properties)]
        modes.update(dict.fromkeys(first, _DEFAULT_MODE))
    for leaf in leaves:
        own = properties.get(f"{_METRICS}column.{leaf.name}")
        if own is not None:
            modes[leaf.field_id] = _mode(own, default)
    return modes


def output_properties(metadata: TableMetadata) -> dict[str, str]:
    """The table properties ``write.*`` for outputs, within limits (:func:`bounded`).

    Columns of the table's sort order get bounds by a mode of their own, even if the default mode has no bounds (Java's
    ``sortedColumnDefaultMode``).
    """
    properties = bounded({key: value for key, value in metadata.properties.items() if key.startswith("write.")})
    leaves = leaf_columns(metadata.current_schema)
    if _default_mode(properties, len(leaves)) in ("none", "counts"):
        names = {leaf.field_id: leaf.name for leaf in leaves}
        # Except under ``bucket``, which does not keep the order.
        kept = (f for f in metadata.default_sort_order_fields if not str(f["transform"]).startswith("bucket"))
        for field_id in (int(i) for f in kept for i in f.get("source-ids") or [f["source-id"]]):
            if field_id in names:
                properties.setdefault(f"{_METRICS}column.{names[field_id]}", _DEFAULT_MODE)
    return properties


def _default_mode(properties: Mapping[str, str], columns: int) -> str:
    explicit = properties.get(f"{_METRICS}default")
    if explicit is not None:
        return _mode(explicit, _DEFAULT_MODE)
    return _DEFAULT_MODE if columns < _limit(properties) else "none"


def _limit(properties: Mapping[str, str]) -> int:
    text = properties.get(f"{_METRICS}max-inferred-column-defaults", "")
    return int(text) if text.isdecimal() and len(text) < 10 else _MAX_INFERRED_DEFAULT


def _mode(text: str, default: str) -> str:
    mode = text.strip().lower()
    return mode if mode in ("none", "counts", "full") or re.fullmatch(r"truncate\([1-9][0-9]{0,8}\)", mode) else default


def _shallow_first(fields: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    """Ids of leaf columns, level by level from the top (Java's ``limitFieldIds``)."""
    nested = []
    for field in fields:
        if isinstance(field["type"], str):
            yield int(field["id"])
        else:
            nested.append(field["type"])
    for kind in nested:
        if kind["type"] == "struct":
            yield from _shallow_first(kind["fields"])
        else:
            parts = ("element",) if kind["type"] == "list" else ("key", "value")
            yield from _shallow_first([{"id": kind[f"{part}-id"], "type": kind[part]} for part in parts])


# Footers must not have bounds for some float columns (platform: arrow-equal-bounds).
#
# Bounds in a footer leave out NaN, and those of zeros are -0.0 and 0.0, whatever their sign (Parquet format,
# "Statistics").  Readers built on Arrow read equal bounds as "every row has this single value".  Then ``IN (0.0)``
# misses zeros, because Arrow compares their bits, and ``is_nan`` and ``<>`` miss NaN. Inside its file such a column
# allows almost no skipping; the bounds in the manifest stay.


def is_misread(least: float, greatest: float, nans: int) -> bool:
    """Whether readers would wrongly read these bounds of a float column as "every row has this single value"."""
    return least == greatest and (least == 0 or nans > 0)


def misread_columns(files: Iterable[DataFile], leaves: Sequence[LeafColumn]) -> frozenset[int]:
    """Field ids of float columns whose bounds would be misread in some file, according to its manifest entry.

    Rows of that file may fill a row group of an output, whose bounds would then be misread, too.
    """
    floats = [leaf for leaf in leaves if leaf.is_float and not leaf.repeated]
    ids = frozenset(leaf.field_id for leaf in floats)
    return frozenset(field_id for file in files for field_id in _misread_in(file, floats, ids))


def _misread_in(file: DataFile, floats: Sequence[LeafColumn], ids: frozenset[int]) -> Iterator[int]:
    lower, upper = (metric_of(file, name, ids) if ids else {} for name in ("lower_bounds", "upper_bounds"))
    for leaf in floats:
        least, greatest = lower.get(leaf.field_id), upper.get(leaf.field_id)
        if least is None or greatest is None:
            continue
        if least != greatest and len(least) == len(greatest) and least.strip(b"\x00\x80"):
            continue  # only zeros are equal in other bytes
        with suppress(ValueError):  # bounds of another type
            low, high = decode(leaf.iceberg_type, least), decode(leaf.iceberg_type, greatest)
            if low == high and is_misread(low, high, metric_of(file, "nan_value_counts", ids).get(leaf.field_id, 0)):
                yield leaf.field_id
