"""Whether an answer of success is DynamoDB's own (rule 169).

boto3 takes a page that a proxy answers with status 200 for an empty answer: to a read, that there is no such item, such
as a pin; to a write, that the item, such as a lease, is written.  What is not DynamoDB's is made a failure that may
pass, as a 502 is: boto3 repeats the request.
Source: Amazon DynamoDB API reference, "Query", "Scan", "BatchGetItem", "Response Syntax".
"""

from __future__ import annotations

from typing import Any

__all__ = ["require_own_answers"]

_MEMBERS = {"BatchGetItem": b'"Responses"', "Query": b'"Items"', "Scan": b'"Items"'}
"""What stands in every answer to these; answers to others may be empty objects."""
_FOREIGN = (
    b'{"__type": "NoAnswerOfDynamoDB", "message": "the answer is not one of DynamoDB, so that the request counts as '
    b'failed; look for a proxy that answers in its place"}'
)


def require_own_answers(client: Any) -> None:
    """Have a boto3 client for DynamoDB look at every answer before it is parsed."""
    client.meta.events.register("before-parse.dynamodb", _look)
    client.meta.events.register_first("needs-retry.dynamodb", _believe_parsed)


def _look(response_dict: dict[str, Any], operation_model: Any, **_: Any) -> None:
    body = response_dict["body"].strip()
    is_own = body.startswith(b"{") and body.endswith(b"}") and _MEMBERS.get(operation_model.name, b"") in body
    if response_dict["status_code"] < 300 and not is_own:
        response_dict.update(status_code=502, body=_FOREIGN)


def _believe_parsed(response: Any, **_: Any) -> None:
    """Give the answer the status that it was parsed with, by which boto3 decides what to do, as it does for S3."""
    if response is not None:
        http_response, parsed = response
        http_response.status_code = parsed["ResponseMetadata"]["HTTPStatusCode"]
