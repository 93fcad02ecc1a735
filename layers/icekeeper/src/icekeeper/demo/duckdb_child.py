"""The process in which DuckDB runs; only :mod:`icekeeper.demo.measure` starts it.

Standard input holds one request as JSON, for one or more snapshots.  Each checksum goes to standard output as a line
of JSON.  The first failure ends the process with one line on standard error and exit code 1.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

# In the order of loading: the Iceberg extension needs httpfs and avro.
_EXTENSIONS = ("duckdb_extension_httpfs", "duckdb_extension_avro", "duckdb_extension_iceberg")


def main() -> int:
    """Answer the request on standard input and return the exit code."""
    request = json.load(sys.stdin)
    try:
        connection = connect(request["s3"])
        for metadata_location, snapshot_id in request["snapshots"]:
            scan = _scan(metadata_location, snapshot_id)
            columns = [row[0] for row in connection.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()]
            # Sorted by name: an engine may put columns into another order without changing a row.
            names = ", ".join(_identifier(column) for column in sorted(columns))
            _checksum(connection, scan, names)
    except Exception as error:
        message = str(error).strip().partition("\nLINE 1:")[0]  # what follows repeats our query
        sys.stderr.write(" ".join(message.split()) + "\n")
        return 1
    return 0


def connect(s3: dict[str, str] | None) -> Any:
    """A database in memory that reads Iceberg tables and, with PyIceberg's properties, S3."""
    import duckdb  # here, so that its absence is reported like any other failure

    connection = duckdb.connect(
        config={
            "allow_unsigned_extensions": "true",  # the wheels' files are loaded by path, not from DuckDB's own site
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
    )
    for package in _EXTENSIONS:
        connection.execute(f"LOAD {_literal(str(_extension_file(package)))}")
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET preserve_insertion_order = false")
    if s3:
        scheme, _, host = s3["s3.endpoint"].partition("://")
        settings = {
            "KEY_ID": s3["s3.access-key-id"],
            "SECRET": s3["s3.secret-access-key"],
            "REGION": s3.get("s3.region", "us-east-1"),
            "ENDPOINT": host.rstrip("/"),
            "URL_STYLE": "path",
            "USE_SSL": str(scheme == "https").lower(),
        }
        options = ", ".join(f"{key} {_literal(value)}" for key, value in settings.items())
        connection.execute(f"CREATE TEMPORARY SECRET table_bucket (TYPE s3, {options})")
    return connection


def _extension_file(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"the Python package {package.replace('_', '-')} is not installed")
    return next(Path(spec.origin).parent.glob("extensions/*/*.duckdb_extension"))


def _scan(metadata_location: str, snapshot_id: int | None) -> str:
    options = "" if snapshot_id is None else f", snapshot_from_id = {snapshot_id:d}"
    if ".gz." in metadata_location or metadata_location.endswith(".gz"):
        options += ", metadata_compression_codec = 'gzip'"
    return f"iceberg_scan({_literal(metadata_location)}{options})"


def _checksum(connection: Any, scan: str, names: str) -> None:
    # A sum, not an exclusive or: a row that appears twice must count twice.
    query = f"SELECT count(*), coalesce(sum(hash({names})::HUGEINT), 0) FROM {scan}"
    rows, total = connection.execute(query).fetchone()
    sys.stdout.write(json.dumps({"rows": rows, "checksum": f"{total:x}"}) + "\n")
    sys.stdout.flush()  # the number of lines says where an abort happened


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


if __name__ == "__main__":
    sys.exit(main())
