"""The AWS Glue Data Catalog: tables in ordinary S3 buckets, swapped by the version id that Glue keeps for every table.

A commit reads Glue's entry of the table, checks that it still points at the commit's base, and sends it back with the
new pointer, on condition that the entry still has the same version.  Everything else in the entry (columns, owner, …)
is sent back unchanged, because maintenance changes no schema.

Resource links are skipped: they point at tables of another database or account, which are maintained there.  A database
whose tables must not be listed is skipped and reported (rule: partial-listings-delete-nothing).
Source: AWS Glue API reference, "GetTable" and "UpdateTable"; the properties are those of PyIceberg's ``GlueCatalog``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from botocore.exceptions import ClientError

from icekeeper.catalogs.aws_service import AWS_ERRORS, AwsService
from icekeeper.catalogs.catalog import LoadedTable, missing_table
from icekeeper.catalogs.commit_answer import CommitAnswer, error_of
from icekeeper.catalogs.configured import ConfiguredCatalog
from icekeeper.catalogs.pointer import TableFiles, commit_document
from icekeeper.errors import CommitConflict, MetadataUnreadable, PartlyListed, PolicyError, StorageError, TableNotFound
from icekeeper.model import TableName
from icekeeper.storage.failures import is_refused

GLUE = AwsService(
    title="the Glue Data Catalog",
    client="glue",
    prefixes=("glue", "client"),
    conflict_codes=frozenset({"ConcurrentModificationException", "VersionMismatchException"}),
    missing_codes=frozenset({"EntityNotFoundException"}),
    members={"GetDatabases": "DatabaseList", "GetTable": "Table", "GetTables": "TableList"},
    # Timeouts, and failures of the source of a federated catalog, come with status 400.
    unknown_codes=frozenset(
        {"OperationTimeoutException", "FederationSourceException", "FederationSourceRetryableException"}
    ),
)
POINTER, PREVIOUS = "metadata_location", "previous_metadata_location"
# In the id of a catalog that Glue federates to S3 Tables: ACCOUNT:s3tablescatalog/BUCKET.
_TABLE_BUCKETS = "s3tablescatalog"
_SHOWN = 3


class GlueCatalog:
    """The Iceberg tables of a Glue Data Catalog: tables whose parameter ``table_type`` is ``ICEBERG``.

    Properties: ``glue.id`` (another account's catalog), ``glue.endpoint``, ``glue.skip-archive`` (true unless set:
    Glue keeps no older versions), region and credentials as ``glue.*`` or ``client.*``, else boto3's default chain;
    ``s3.*`` and ``client.*`` for the files.
    """

    built_in_maintenance = None

    def __init__(self, configured: ConfiguredCatalog) -> None:
        """Prepare the clients; nothing is sent.

        Raises:
            PolicyError: ``glue.skip-archive`` is neither true nor false, or ``glue.id`` names table buckets.
            StorageError: the profile or role of the properties cannot be used, or no region is known.
        """
        self.id = configured.id
        self._properties = configured.texts
        skip_archive = self._properties.get("glue.skip-archive", "true").lower()
        if skip_archive not in ("true", "false"):
            raise PolicyError(f"catalog {self.id}: glue.skip-archive is '{skip_archive}'; set it to true or false")
        self._skip_archive = skip_archive == "true"
        self._catalog_id = {"CatalogId": found} if (found := self._properties.get("glue.id")) else {}
        if found and _TABLE_BUCKETS in found:
            raise PolicyError(
                f"catalog {self.id}: glue.id '{found}' names S3 table buckets; open each as a catalog of type s3tables,"
                " with its ARN as warehouse"
            )
        self._files = TableFiles(configured)
        try:
            self._clients = GLUE.connect(self._properties)
        except AWS_ERRORS as error:
            raise self._unusable(error) from error

    def list_tables(self) -> Iterator[TableName]:
        refused: list[str] = []
        missing: list[str] = []
        try:
            for database in self._databases():
                yield from self._tables_of(database, refused, missing)
            if missing:  # a database was dropped if a new listing lacks it
                refused += {*missing}.intersection(self._databases())
        except AWS_ERRORS as error:
            raise self._unusable(error) from error
        if refused:
            shown = ", ".join([*refused[:_SHOWN], *(["…"] if len(refused) > _SHOWN else [])])
            raise PartlyListed(
                f"catalog {self.id} (Glue Data Catalog): access to the tables of {len(refused)} database(s) is denied"
                f" ({shown}); allow glue:GetTables on them if they may share files with maintained tables",
                hidden=[tuple(name.split(".")) for name in refused],
            )

    def load(self, table: TableName) -> LoadedTable:
        entry = self._entry(table)
        if not _is_iceberg(entry):
            raise TableNotFound(f"{table} in catalog {self.id} is not an Iceberg table")
        if target := entry.get("TargetTable"):
            place = f"{target.get('DatabaseName')}.{target.get('Name')} in catalog {target.get('CatalogId')}"
            raise TableNotFound(f"{table} in catalog {self.id} is a resource link; maintain the table itself: {place}")
        location = entry["Parameters"].get(POINTER)
        if not location:
            raise MetadataUnreadable(f"{table} has no {POINTER} in catalog {self.id}")
        # Glue changes names to lower case: use its spelling, so that a table has only one name.
        name = TableName(tuple(str(entry["DatabaseName"]).split(".")), str(entry["Name"]))
        return self._files.load(name, location, location)

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        swap = partial(self._swap, base, self._entry_at(base))
        return commit_document(base, requirements, updates, swap=swap, storage=self._files.storage, load=self.load)

    def point_to(self, base: LoadedTable, location: str) -> None:
        self._swap(base, self._entry_at(base), location)

    def _entry_at(self, base: LoadedTable) -> dict[str, Any]:
        """The entry, with its version; raises CommitConflict if it is not at ``base``."""
        entry = self._entry(base.name)
        if entry.get("Parameters", {}).get(POINTER) != base.token:
            raise CommitConflict(f"{base.name} has changed: another writer committed first")
        if not entry.get("VersionId"):
            raise StorageError(
                f"catalog {self.id} sends no version of {base.name}, so a commit could undo another writer's commit;"
                " nothing was sent"
            )
        return entry

    def close(self) -> None:
        self._clients.close()

    def _swap(self, base: LoadedTable, entry: Mapping[str, Any], location: str) -> str:
        moved = {**entry["Parameters"], POINTER: location, PREVIOUS: base.metadata_location}
        update = self._clients.once.meta.service_model.operation_model("UpdateTable").input_shape
        try:
            self._clients.once.update_table(
                **self._catalog_id,
                DatabaseName=entry["DatabaseName"],
                TableInput=_accepted(update.members["TableInput"], {**entry, "Parameters": moved}),
                VersionId=entry["VersionId"],
                SkipArchive=self._skip_archive,
            )
        except AWS_ERRORS as error:
            raise GLUE.swap_error(error, base.name, self._unusable) from error
        # Glue's success response says nothing about the table.
        try:
            shown = self._entry(base.name).get("Parameters", {}).get(POINTER)
        except (PolicyError, StorageError) as error:
            raise error_of(CommitAnswer.UNKNOWN, base.name, f"the table cannot be read: {error}") from error
        if shown != location:
            raise error_of(CommitAnswer.UNKNOWN, base.name, "Glue points at another metadata file now")
        return location

    def _entry(self, table: TableName) -> dict[str, Any]:
        database = ".".join(table.namespace)  # databases do not nest, but their names may have dots
        try:
            answer = self._clients.repeating.get_table(**self._catalog_id, DatabaseName=database, Name=table.name)
        except AWS_ERRORS as error:
            if GLUE.is_missing(error):
                raise missing_table(self, table) from error
            raise self._unusable(error) from error
        entry: dict[str, Any] = answer["Table"]
        return entry

    def _databases(self) -> Iterator[str]:
        for page in self._pages("get_databases"):
            yield from (database["Name"] for database in page["DatabaseList"] if "TargetDatabase" not in database)

    def _tables_of(self, database: str, refused: list[str], missing: list[str]) -> Iterator[TableName]:
        """The tables of a database; its name is added to ``refused`` if they must not be listed, and to ``missing`` if
        Glue answers that the database does not exist."""
        try:
            for page in self._pages("get_tables", DatabaseName=database):
                for entry in page["TableList"]:
                    if _is_iceberg(entry) and "TargetTable" not in entry:
                        yield TableName(tuple(database.split(".")), entry["Name"])
        except ClientError as error:
            if is_refused(error):
                refused.append(database)
            elif GLUE.is_missing(error):
                missing.append(database)
            else:
                raise

    def _pages(self, operation: str, **arguments: str) -> Any:
        return self._clients.repeating.get_paginator(operation).paginate(**self._catalog_id, **arguments)

    def _unusable(self, error: Exception) -> StorageError:
        return StorageError(f"catalog {self.id} (Glue Data Catalog) {GLUE.describe(error, self._properties)}")


def _is_iceberg(entry: Mapping[str, Any]) -> bool:
    return str(entry.get("Parameters", {}).get("table_type", "")).lower() == "iceberg"


def _accepted(shape: Any, value: Any) -> Any:
    """The fields of an answer that a request also has, at every level, by boto3's description of the request."""
    if shape.type_name == "structure":
        return {key: _accepted(shape.members[key], item) for key, item in value.items() if key in shape.members}
    if shape.type_name == "list":
        return [_accepted(shape.member, item) for item in value]
    return value
