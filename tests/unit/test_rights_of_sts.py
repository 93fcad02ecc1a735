"""AWS STS tells everybody who they are, and gives a role to those only who may have it (rule 143)."""

from __future__ import annotations

import botocore.parsers
import pytest

from local_stack.gate import needs_of
from local_stack.rights.denials import denial
from local_stack.rights.evaluate import Need
from local_stack.wire import WireRequest

ROLE = "arn:aws:iam::123456789012:role/other"


@pytest.mark.parametrize(
    ("query", "body", "needs"),
    [
        ("", b"Action=GetCallerIdentity&Version=2011-06-15", []),
        ("Action=GetCallerIdentity&Version=2011-06-15", b"", []),
        ("", f"Action=AssumeRole&RoleArn={ROLE}".encode(), [Need("sts:AssumeRole", ROLE)]),
        ("", b"", [Need("sts:POST", "*")]),
    ],
)
def test_only_roles_need_a_right(query: str, body: bytes, needs: list[Need]) -> None:
    assert list(needs_of(WireRequest("sts", "POST", "/", query, body=body))) == needs


def test_clients_understand_the_denial_of_a_role() -> None:
    answer = denial(WireRequest("sts", "POST", "/"), "R", Need("sts:AssumeRole", ROLE))

    told = botocore.parsers.create_parser("query").parse(
        {"body": answer.body, "headers": dict(answer.headers), "status_code": int(answer.status[:3])}, None
    )
    assert (told["Error"]["Code"], "sts:AssumeRole" in told["Error"]["Message"]) == ("AccessDenied", True)
