"""What a failed swap is told as: conflict, refused, busy, unknown, or never sent."""

from __future__ import annotations

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from botocore.parsers import ResponseParserError

from icekeeper.catalogs.aws_service import AwsService
from icekeeper.catalogs.glue import GLUE
from icekeeper.catalogs.s3tables import S3_TABLES
from icekeeper.errors import (
    CatalogBusy,
    CommitConflict,
    CommitRefused,
    CommitStateUnknown,
    MaintenanceError,
    StorageError,
)
from icekeeper.model import TableName

TABLE = TableName(("ns",), "t")


def told(service: AwsService, error: Exception) -> MaintenanceError:
    return service.swap_error(error, TABLE, lambda cause: StorageError(f"unusable: {cause}"))


@pytest.mark.parametrize(
    ("service", "code", "status", "expected"),
    [
        (S3_TABLES, "ConflictException", 409, CommitConflict),
        (S3_TABLES, "NotFoundException", 404, CommitRefused),
        (S3_TABLES, "InternalServerErrorException", 500, CommitStateUnknown),
        (S3_TABLES, "ThrottlingException", 503, CatalogBusy),
        (S3_TABLES, "TooManyRequestsException", 429, CatalogBusy),
        (S3_TABLES, "ForbiddenException", 403, CommitRefused),
        *((S3_TABLES, str(status), status, CommitStateUnknown) for status in (301, 307, 403, 404, 408, 429)),
        (S3_TABLES, "", 404, CommitStateUnknown),
        (S3_TABLES, "RequestTimeoutException", 408, CommitStateUnknown),
        (S3_TABLES, "RequestTimeout", 400, CommitStateUnknown),
        (S3_TABLES, "SlowDown", 503, CatalogBusy),
        (GLUE, "InternalServiceException", 400, CommitStateUnknown),
        (GLUE, "PriorRequestNotComplete", 400, CommitStateUnknown),
        (GLUE, "Throttling", 400, CatalogBusy),
        (GLUE, "ConcurrentModificationException", 400, CommitConflict),
        (GLUE, "VersionMismatchException", 400, CommitConflict),
        (GLUE, "EntityNotFoundException", 400, CommitRefused),
        (GLUE, "InternalServiceException", 500, CommitStateUnknown),
        (GLUE, "503", 503, CommitStateUnknown),
        (GLUE, "OperationTimeoutException", 400, CommitStateUnknown),
        (GLUE, "FederationSourceException", 400, CommitStateUnknown),
        (GLUE, "ThrottlingException", 400, CatalogBusy),
        (GLUE, "AccessDeniedException", 400, CommitRefused),
        (GLUE, "InvalidInputException", 400, CommitRefused),
        (GLUE, "ResourceNumberLimitExceededException", 400, CommitRefused),
    ],
)
def test_answers_are_told_apart_by_code_and_status(
    service: AwsService, code: str, status: int, expected: type[MaintenanceError]
) -> None:
    answer = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert type(told(service, ClientError(answer, "Update"))) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ReadTimeoutError(endpoint_url="http://x"), CommitStateUnknown),
        (ResponseParserError("garbage"), CommitStateUnknown),
        (EndpointConnectionError(endpoint_url="http://x"), StorageError),
        (ConnectTimeoutError(endpoint_url="http://x"), StorageError),
        (NoCredentialsError(), StorageError),
    ],
)
def test_without_an_answer_it_matters_whether_the_request_was_sent(
    error: Exception, expected: type[MaintenanceError]
) -> None:
    assert type(told(GLUE, error)) is expected
