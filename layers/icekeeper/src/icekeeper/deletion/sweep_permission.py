"""Permits the deletion of files that only a listing shows: in Iceberg tables, and with names that Iceberg writers use.

Other systems (Lance) register their tables as Iceberg tables, and keep files there that look like orphans.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from icekeeper.errors import OperationRefused
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.table_reader import VERSION_HINT
from icekeeper.storage.paths import is_under

# Glue and Hive write ``ICEBERG``, Lance Namespace ``lance`` ("Apache Iceberg REST Catalog", "Table Definition").
# People also use the property for their own purposes (``fact``), so operators may waive a value.
_TABLE_TYPE = "tabletype"
_ICEBERG = "iceberg"
_LONGEST_VALUE = 100


def refuse_other_type(metadata: TableMetadata, waived: Iterable[str]) -> None:
    """Refuse to sweep a table whose property ``table_type``, in any spelling, has another value than ``iceberg``.

    ``waived``: further values that the operator permits (rule: sweep-iceberg-tables-only).

    Raises:
        OperationRefused: the message names property and value.
    """
    permitting = {_ICEBERG, *(value.lower() for value in waived)}
    for key, value in metadata.properties.items():
        if re.sub("[^a-z]", "", key.lower()) == _TABLE_TYPE and value.strip().lower() not in permitting:
            raise OperationRefused(
                f"table property {key} is '{value[:_LONGEST_VALUE]}': files of another format would look like orphans; "
                "nothing was deleted; if all its files are Iceberg's, remove the property, or name the value in "
                "orphan_table_types, which counts only from the deployment, a policy file or the call"
            )


# The endings of file names that writers of Iceberg tables use (rule: sweep-iceberg-tables-only).  The name of a codec
# comes before the ending (``.snappy.parquet``).  Spark, Flink, Trino, Hive, Kafka Connect, PyIceberg, iceberg-go,
# iceberg-rust, DuckDB and Snowflake use the same endings.
_ENDINGS = (
    ".parquet",  # this and the next three: Iceberg-Java, FileFormat; manifests and Flink's temporary manifests are Avro
    ".orc",
    ".avro",
    ".puffin",
    ".parq",  # Impala, HdfsParquetTableWriter
    ".stats",  # Trino, TableStatisticsWriter; Iceberg-Java, NDVSketchUtil; our compute_statistics
    ".metadata.json",  # .gz.metadata.json, too: Iceberg-Java, TableMetadataParser.Codec
    ".metadata.json.gz",  # the former spelling; it is still read
    "-version-hint.temp",  # Iceberg-Java, HadoopTableOperations, which renames it to the version hint
)
# Hive, Utilities.COPY_FILE_NAME_TO_TASK_ID_REGEX: files of migrated tables.
_OF_HIVE = re.compile(r"[0-9]{6,}_[0-9]+(?:_copy_[0-9]+)?")
# Hadoop, ChecksumFileSystem.getChecksumFile: ``.NAME.crc``; ours, ``storage.local_files.write_whole``.
_BESIDE = re.compile(r"\.(.+)(?:\.crc|\.[0-9a-f]{32}\.unfinished)", re.DOTALL)
_LONGEST_ENDING = 12


ASIDE_FOLDER = "icekeeper-aside"
"""The folder beside a table's metadata in which a rollback keeps copies of metadata, in a folder of its own."""
ASIDE_KEPT_MS = 30 * 24 * HOUR_MS


def is_aside(path: str, metadata: TableMetadata) -> bool:
    """Whether a file is a copy of metadata that a rollback keeps (rule: the-old-head-stays)."""
    return is_under(path, f"{metadata.metadata_directory}/{ASIDE_FOLDER}")


def is_of_iceberg(path: str, endings: Iterable[str] = ()) -> bool:
    """Whether a writer of Iceberg tables may have given this name; ``endings``: further endings, with or without a
    dot."""
    name = path.rpartition("/")[2]
    beside = _BESIDE.fullmatch(name)
    name = name if beside is None else beside[1]
    further = tuple(f".{ending.removeprefix('.')}" for ending in endings)
    return name.endswith((*_ENDINGS, *further)) or name == VERSION_HINT or _OF_HIVE.fullmatch(name) is not None


def ending_of(path: str) -> str:
    """The ending of a file's name, as reports count it; ``no ending`` if the part after the last dot is not one."""
    stem, _, ending = path.rpartition("/")[2].rpartition(".")
    is_ending = stem and ending.isascii() and ending.isalnum() and len(ending) <= _LONGEST_ENDING
    return f".{ending}" if is_ending else "no ending"
