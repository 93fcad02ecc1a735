"""The maintenance that an AWS table bucket does by itself, through the S3 Tables API.

An operation that an answer lacks, or that has no status, counts as enabled, which is AWS's default.  A transient error
(throttling, a server's error) is a failure.  A lasting error (a missing right, a server that does not know the request)
is reported as unreadable, and the bucket is assumed to run that operation (rule: throttles-are-failures).
Source: Amazon S3 API reference, "GetTableMaintenanceConfiguration", "GetTableBucketMaintenanceConfiguration",
"GetTableMaintenanceJobStatus", "PutTableMaintenanceConfiguration".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from botocore.exceptions import ClientError, ReadTimeoutError

from icekeeper.aws.session import aws_session, client_config
from icekeeper.catalogs.aws_service import AWS_ERRORS, is_throttle, outlast_throttles
from icekeeper.catalogs.configured import TableBucketArn, is_table_bucket
from icekeeper.errors import StorageError
from icekeeper.model import TableName
from icekeeper.operation_facts import BuiltIn
from icekeeper.policy.ownership import BucketMaintenance
from icekeeper.storage.failures import describe_failure, is_transient
from icekeeper.text import mask

S3TABLES_PREFIXES = ("s3tables", "client", "s3")
_TABLE_WIDE = (BuiltIn.COMPACTION, BuiltIn.SNAPSHOT_MANAGEMENT)
_BUCKET_WIDE = (BuiltIn.UNREFERENCED_FILE_REMOVAL,)
# Long enough that a scan sends one request for many tables, and no longer: a warm function lives for hours, and with an
# outdated answer it would reject every plan of another function as stale.
_REMEMBERED_S = 10.0


class TableBucketMaintenance:
    """The maintenance of a table bucket; safe to share between threads."""

    def __init__(
        self,
        arn: str,
        connect: Callable[[], Any],
        properties: Mapping[str, str],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``connect`` makes the S3 Tables client on first use; messages mask secrets in ``properties``."""
        self._arn = arn
        self._connect = connect
        self._properties = properties
        self._monotonic_s = monotonic_s
        self._bucket_wide: BucketMaintenance | None = None
        self._asked_s = 0.0

    def read(self, table: TableName) -> BucketMaintenance:
        """The operations that the bucket runs for a table, and the settings that cannot be read.

        The settings of the whole bucket are cached for seconds.

        Raises:
            StorageError: the bucket does not answer now, but may later.
        """
        own = self._ask(_TABLE_WIDE, lambda client: client.get_table_maintenance_configuration(**self._address(table)))
        shared, now_s = self._bucket_wide, self._monotonic_s()
        if shared is None or now_s - self._asked_s > _REMEMBERED_S:
            shared = self._ask(
                _BUCKET_WIDE, lambda client: client.get_table_bucket_maintenance_configuration(tableBucketARN=self._arn)
            )
            self._bucket_wide, self._asked_s = (None if shared.unreadable else shared), now_s
        return BucketMaintenance(
            {**own.is_enabled, **shared.is_enabled},
            {**own.unreadable, **shared.unreadable},
            {**own.settings, **shared.settings},
        )

    def with_jobs(self, bucket: BucketMaintenance, table: TableName) -> BucketMaintenance:
        """The same with the last runs of the bucket's own operations on a table, or why they cannot be read.

        Raises:
            StorageError: the bucket does not answer now, but may later.
        """
        try:
            answer = self._client.get_table_maintenance_job_status(**self._address(table)).get("status") or {}
        except AWS_ERRORS as error:
            return replace(bucket, jobs_unreadable=self._lasting(error))
        found = {built_in: answer[built_in.value] for built_in in BuiltIn if built_in.value in answer}
        jobs = {
            built_in: (str(job.get("status")), " ".join(str(job.get("failureMessage") or "").split()))
            for built_in, job in found.items()
        }
        return replace(bucket, jobs=jobs)

    def disable(self, table: TableName, built_in: BuiltIn) -> None:
        """Switch off an operation of the bucket for a table, and keep the operation's settings.

        Raises:
            StorageError: it could not be switched off, it can only be switched off for the whole bucket, or its
                settings cannot be read.
        """
        if built_in not in _TABLE_WIDE:
            raise StorageError(f"{built_in.value} can only be switched off for all tables of a bucket")
        try:
            found = self.read(table)
        except StorageError as error:
            raise StorageError(f"its settings cannot be read: {error}") from error
        settings = found.settings.get(built_in)
        if settings is None:  # a request without settings would erase them, such as how long snapshots are kept
            raise StorageError(f"its settings cannot be read: {found.unreadable[built_in]}")
        value: dict[str, Any] = {"status": "disabled"}
        if settings:
            value["settings"] = {built_in.value: dict(settings)}
        try:
            self._client.put_table_maintenance_configuration(**self._address(table), type=built_in.value, value=value)
        except AWS_ERRORS as error:
            raise StorageError(self._words(error)) from error

    def _ask(self, asked: tuple[BuiltIn, ...], get: Callable[[Any], Mapping[str, Any]]) -> BucketMaintenance:
        try:
            configuration = get(self._client).get("configuration") or {}
        except AWS_ERRORS as error:
            return BucketMaintenance(unreadable=dict.fromkeys(asked, self._lasting(error)))
        is_enabled: dict[BuiltIn, bool] = {}
        settings: dict[BuiltIn, Mapping[str, object]] = {}
        for built_in in asked:
            value = configuration.get(built_in.value) or {}
            is_enabled[built_in] = value.get("status") != "disabled"
            settings[built_in] = (value.get("settings") or {}).get(built_in.value) or {}
        return BucketMaintenance(is_enabled, settings=settings)

    @cached_property
    def _client(self) -> Any:
        return self._connect()

    def _address(self, table: TableName) -> dict[str, str]:
        return {"tableBucketARN": self._arn, "namespace": ".".join(table.namespace), "name": table.name}

    def _lasting(self, error: Exception) -> str:
        """The text of a lasting error; a transient error raises StorageError."""
        passing = isinstance(error, ReadTimeoutError)
        if isinstance(error, ClientError):
            passing = is_transient(error) or is_throttle(error.response)
        if passing:
            raise StorageError(f"the maintenance of table bucket {self._arn} cannot be read: {self._words(error)}")
        return self._words(error)

    def _words(self, error: Exception) -> str:
        reason = describe_failure(error, self._properties.get("s3tables.endpoint"))
        return mask(f"S3 Tables {reason}", self._properties)


def maintenance_behind(properties: Mapping[str, str]) -> TableBucketMaintenance | None:
    """The maintenance of the table bucket whose ARN is a REST catalog's warehouse; ``None`` for other warehouses."""
    arn = properties.get("warehouse") or ""
    if not is_table_bucket(arn):
        return None
    region = TableBucketArn.parse(arn).region
    reached = {"s3tables.region": region, **properties} if region else properties
    return TableBucketMaintenance(
        arn, lambda: s3tables_client(reached, aws_session(reached, S3TABLES_PREFIXES)), reached
    )


def s3tables_client(properties: Mapping[str, str], session: Any) -> Any:
    """A client of the S3 Tables API, at the endpoint in the properties; it repeats throttled requests."""
    client = session.client(
        "s3tables", endpoint_url=properties.get("s3tables.endpoint"), config=client_config(properties, attempts=3)
    )
    outlast_throttles(client)
    return client
