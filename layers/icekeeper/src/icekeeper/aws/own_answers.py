"""Whether an answer of success is the service's own, for services that answer in JSON (rule 169).

boto3 takes a page that a proxy answers with status 200 for an empty answer: to a read, that there is no such item, such
as a pin; to a write, that the item, such as a lease, is written.  What is not the service's is made a failure that may
pass, as a 502 is: boto3 repeats the request where it repeats failed ones.
Source: the services' API references, "Response Syntax".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["require_members"]

_FOREIGN = (
    b'{"__type": "ForeignAnswer", "message": "the answer is not one of the service, so that the request counts as '
    b'failed; look for a proxy that answers in its place"}'
)


def require_members(client: Any, members: Mapping[str, str]) -> None:
    """Have a boto3 client look at answers before they are parsed.

    ``members``: operation → a member that each of its answers has; empty where answers may be empty objects.
    """

    def look(response_dict: dict[str, Any], operation_model: Any, **_: Any) -> None:
        member = members.get(operation_model.name)
        if member is not None and response_dict["status_code"] < 300 and not _has(response_dict["body"], member):
            response_dict.update(status_code=502, body=_FOREIGN)

    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register(f"before-parse.{service}", look)
    client.meta.events.register_first(f"needs-retry.{service}", _believe_parsed)


def _has(body: bytes, member: str) -> bool:
    told = body.strip()
    return told.startswith(b"{") and told.endswith(b"}") and (not member or f'"{member}"'.encode() in told)


def _believe_parsed(response: Any, **_: Any) -> None:
    """Give the answer the status that it was parsed with, by which boto3 decides what to do, as it does for S3."""
    if response is not None:
        http_response, parsed = response
        http_response.status_code = parsed["ResponseMetadata"]["HTTPStatusCode"]
