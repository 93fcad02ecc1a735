"""Failures of stores: decides whether a failure is transient or a refusal, and describes it in words."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ProfileNotFound,
)

from icekeeper.text import masked

# S3 API reference, "Error responses": errors after which it advises to try again.
TRANSIENT_CODES = frozenset(
    {
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
# Refused by the kind of bucket (platform: table-buckets-no-list-delete) or by a policy.  Wrong credentials also cause a
# 403, but with other codes.
REFUSED_CODES = frozenset({"405", "AccessDenied", "AccessDeniedException", "MethodNotAllowed", "NotImplemented"})
# Statuses that concern the object: it is missing, has another ETag, or ends before the range.
_OF_THE_OBJECT = frozenset({404, 412, 416})
_DENIED_CODES = frozenset({"AccessDenied", "AccessDeniedException"})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_RENEWED = "sign in again, or name a profile or role, whose keys are renewed"
# Arrow requests an object's size with HEAD.  The answer has no body and no code, so with expired keys this is all that
# the error says (platform: arrow-hides-expired-keys).
_WITHOUT_CODE = "(HTTP status 400) during HeadObject"
# What a person can do about codes of S3 and STS (API references, "Error responses", "Common errors").
_ADVICE = (
    (frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}), _RENEWED),
    (
        frozenset({"301", "302", "307", "308", "PermanentRedirect", "Redirect", "TemporaryRedirect"}),
        "the bucket is in another region or store: correct s3.region or s3.endpoint",
    ),
    # The region, the date or the service of a signature is wrong; the message says which.
    (frozenset({"AuthorizationHeaderMalformed"}), "correct s3.region, or the keys"),
)


class ShortAnswer(OSError):
    """A store sent fewer bytes than it has, or bytes of another object; this says nothing about the object."""


def is_transient(error: ClientError) -> bool:
    """Whether a retry after a wait may succeed."""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status == 429 or (status >= 500 and status != 501) or error.response["Error"].get("Code") in TRANSIENT_CODES


def is_refused(error: ClientError | Mapping[str, Any]) -> bool:
    """Whether a failure, or an entry of a batch's errors, is a refusal: the request is not allowed here."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status in (405, 501) or error.response["Error"].get("Code") in REFUSED_CODES
    return error.get("Code") in REFUSED_CODES


def is_denied(error: Mapping[str, Any]) -> bool:
    """Whether an error, or an entry of a batch's errors, means that a right is missing."""
    return error.get("Code") in _DENIED_CODES


def is_missing_bucket(error: BaseException) -> bool:
    """Whether an object could not be read or written because its whole bucket is missing."""
    cause = error.__cause__
    return isinstance(cause, ClientError) and cause.response["Error"].get("Code") == "NoSuchBucket"


def failed_by_store(error: BaseException) -> bool:
    """Whether an object could not be read because of its store or the network, not because it is missing or damaged
    (rule: prove-before-commit).

    This also checks the causes of the error.  Arrow raises the same types for damaged objects and for failures of the
    store; only failures of the store have an errno or contain "AWS Error".
    """
    if isinstance(error, FileNotFoundError):
        return False
    if isinstance(error, ClientError):
        return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") not in _OF_THE_OBJECT
    if isinstance(error, BotoCoreError | PermissionError | ShortAnswer):
        return True
    if isinstance(error, OSError) and (error.errno is not None or "AWS Error" in str(error)):
        return True
    return error.__cause__ is not None and failed_by_store(error.__cause__)


def describe_failure(error: Exception, endpoint: str | None) -> str:
    """The failure in words, as the end of a sentence that begins with the path or service."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    if isinstance(error, EndpointConnectionError | ConnectTimeoutError) or "AWS Error NETWORK_CONNECTION" in text:
        return f"cannot be reached: nothing answers at {endpoint or _aws_host(error)}"
    if isinstance(error, NoCredentialsError):
        return "cannot be reached: no AWS credentials are configured; set them as for the AWS CLI, or set AWS_PROFILE"
    if isinstance(error, ProfileNotFound):
        return f"cannot be reached: {text}; correct AWS_PROFILE or client.profile-name, or add it to ~/.aws/config"
    if isinstance(error, ClientError):
        details = error.response["Error"]
        return failure_in_words(details.get("Code"), details.get("Message"))
    if isinstance(error, OSError) and error.errno in _FULL:
        return "cannot be written: no space is left on its disk; free space there"
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return "cannot be written: its file system is read-only; mount it for writing"
    if isinstance(error, PermissionError) or "AWS Error ACCESS_DENIED" in text:
        return "cannot be accessed: access is denied to these credentials"
    if _WITHOUT_CODE in text:
        return f"was refused by the store without a reason; if the credentials have expired, {_RENEWED}"
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return f"failed: {error.strerror}"  # without the number, and a path that may be internal
    return f"failed: {text}"


def _aws_host(error: Exception) -> str:
    """The AWS endpoint; its name contains the region, and for a mistyped region there is no host."""
    host = urlsplit(getattr(error, "kwargs", {}).get("endpoint_url", "")).hostname
    return f"{host}; correct the region if AWS has no region of that name" if host else "the AWS endpoint"


def failure_in_words(code: str | None, message: str | None) -> str:
    """A store's error code and message, as the end of a sentence that begins with the path or service.

    Either is ``None`` if the store answers with an empty element.
    """
    message = "" if not message or message.startswith("<") else " ".join(masked(message).split())[:300]
    if code in REFUSED_CODES:
        return f"was refused by the store ({code}{': ' + message if message else ''})"
    words = f"failed with {code or 'an error without a code'}{': ' + message if message else ''}"
    advice = next((advice for codes, advice in _ADVICE if code in codes), None)
    return words if advice is None else f"{words.rstrip('.')}; {advice}"
