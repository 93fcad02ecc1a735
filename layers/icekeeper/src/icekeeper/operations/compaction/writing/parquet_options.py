"""Translates the table properties ``write.parquet.*`` into options of Arrow's Parquet writer (rule 27) (pure).

Source: Iceberg table properties (Java's ``TableProperties`` 1.10).
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

from icekeeper.errors import PolicyError
from icekeeper.rows.arrow_schema import LeafColumn

__all__ = ["bounded", "codec_name", "dictionary_bytes", "for_sample", "row_group_bytes", "writer_options"]

_PREFIX = "write.parquet."
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

# What a table may ask for at the cost of whoever maintains it (rule 261), by what Arrow makes of more (platform 123).
_LEAST_PAGE_ROWS = 1000
_MOST = 2**31 - 1
_HIGHEST_LEVEL = {"zstd": 12, "brotli": 9}
_LEAST_FPP = 1e-6
# The filters of all columns of a row group are in memory together.
_BLOOM_TOTAL_BYTES = 128 * 1024 * 1024


def bounded(properties: Mapping[str, str]) -> dict[str, str]:
    """A table's properties within what whoever maintains it can bear (rule 261); malformed ones stay as they are."""
    found = dict(properties)
    pages = found.get(f"{_PREFIX}page-row-limit", "")
    if _is_whole(pages):
        found[f"{_PREFIX}page-row-limit"] = str(max(int(pages), _LEAST_PAGE_ROWS))
    level, codec = found.get(f"{_PREFIX}compression-level", ""), _named_codec(found)
    if codec in _HIGHEST_LEVEL and _is_whole(level) and int(level) in _LEVELS[codec]:
        found[f"{_PREFIX}compression-level"] = str(min(int(level), _HIGHEST_LEVEL[codec]))
    for key in found:
        if key.startswith(f"{_PREFIX}bloom-filter-fpp.column.") and 0 < _number(found[key]) < _LEAST_FPP:
            found[key] = str(_LEAST_FPP)
    return found


def row_group_bytes(properties: Mapping[str, str]) -> int:
    """The encoded size in bytes that row groups aim at.

    Raises:
        PolicyError: the property is no positive integer.
    """
    return _int(properties, "row-group-size-bytes", _ROW_GROUP_BYTES)


def codec_name(properties: Mapping[str, str]) -> str:
    """The codec that the table asks for, as ``write.parquet.compression-codec`` names it, in lower case.

    Raises:
        PolicyError: there is no such codec.
    """
    codec = _named_codec(properties)
    if codec not in _CODECS:
        raise PolicyError(f"table property {_PREFIX}compression-codec is '{codec}'; allowed: {', '.join(_CODECS)}")
    return codec


def dictionary_bytes(properties: Mapping[str, str]) -> int:
    """The size in bytes that a dictionary may have.

    Raises:
        PolicyError: the property is no positive integer.
    """
    return _int(properties, "dict-size-bytes", _DICTIONARY_BYTES)


def for_sample(properties: Mapping[str, str], share: float) -> dict[str, str]:
    """The properties with which a sample of that share of the rows compresses as all rows do.

    Values that do not fit the dictionary are stored plainly.  A sample has fewer distinct values, so its dictionary may
    hold less by the same share.
    """
    limit = int(dictionary_bytes(properties) * min(1.0, share))
    return {**properties, f"{_PREFIX}dict-size-bytes": str(max(1, limit))}


def writer_options(
    properties: Mapping[str, str],
    leaves: Sequence[LeafColumn],
    group_rows: int,
    unmeasured: Container[int] = (),
    without_dictionary: Container[int] = (),
) -> dict[str, Any]:
    """Keyword arguments of ``ParquetWriter``; ``group_rows`` is about how many rows a row group will have.

    ``unmeasured`` are the ids of columns without statistics, besides those that never have any; ``without_dictionary``
    those of columns whose values are stored as they are.

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
        "use_dictionary": _paths([leaf for leaf in leaves if leaf.field_id not in without_dictionary], leaves),
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
    """The Parquet paths of some of the leaf columns; ``True``: they are all."""
    return [leaf.parquet_path for leaf in some] if len(some) < len(leaves) else True


def _level(properties: Mapping[str, str], codec: str) -> int | None:
    """The level of a codec that has levels, ``None`` for the codec's own default."""
    text = properties.get(f"{_PREFIX}compression-level")
    if not text or text == "null" or codec not in _LEVELS:  # Java writes "null" where none is set
        return None
    allowed = _LEVELS[codec]
    if not _is_whole(text) or int(text) not in allowed:
        raise PolicyError(
            f"table property {_PREFIX}compression-level is '{text}'; {codec} has levels {allowed[0]} to {allowed[-1]}"
        )
    return int(text)


def _bloom_filters(
    properties: Mapping[str, str], leaves: Sequence[LeafColumn], group_rows: int
) -> dict[str, dict[str, Any]]:
    """Bloom filter options by Parquet column path; as in Java, booleans and unknown columns get none."""
    filtered = [
        leaf
        for leaf in leaves
        if leaf.iceberg_type != "boolean"
        and properties.get(f"{_PREFIX}bloom-filter-enabled.column.{leaf.name}", "").strip().lower() == "true"
    ]
    most = min(
        _int(properties, "bloom-filter-max-bytes", _BLOOM_MAX_BYTES), _BLOOM_TOTAL_BYTES // max(1, len(filtered))
    )
    filters = {}
    for leaf in filtered:
        key = f"bloom-filter-fpp.column.{leaf.name}"
        fpp = _probability(properties, key, _BLOOM_FPP)
        filters[leaf.parquet_path] = {"ndv": min(group_rows, _most_distinct(most, fpp)), "fpp": fpp}
    return filters


def _most_distinct(max_bytes: int, fpp: float) -> int:
    """How many distinct values fit ``max_bytes``; filter sizes are powers of two (Parquet format, "Bloom Filter")."""
    bits = 8 * 2 ** int(math.log2(max(max_bytes, 32)))
    # The format's formula m = -8·n / ln(1 - fpp^(1/8)), solved for n; rounding down leaves room.
    return max(1, int(bits * -math.log(1 - fpp ** (1 / 8)) / 8) - 1)


def _probability(properties: Mapping[str, str], key: str, default: float) -> float:
    text = properties.get(f"{_PREFIX}{key}")
    value = default if text is None else _number(text)
    if not 0 < value < 1:
        raise PolicyError(f"table property {_PREFIX}{key} is '{text}', which is not between 0 and 1")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _is_whole(text: str) -> bool:
    """Whether it is a whole number of 64 bits, as Java has them, or hardly more."""
    return text.isascii() and text.isdecimal() and len(text) <= 19


def _named_codec(properties: Mapping[str, str]) -> str:
    return (properties.get(f"{_PREFIX}compression-codec") or _CODEC).lower()


def _int(properties: Mapping[str, str], key: str, default: int) -> int:
    text = properties.get(f"{_PREFIX}{key}")
    if text is None:
        return default
    if not _is_whole(text) or int(text) < 1:
        raise PolicyError(f"table property {_PREFIX}{key} is '{text}', which is not a positive integer")
    return min(int(text), _MOST)
