"""The evaluator decides as IAM does, and what takes rights away is found (rule 143)."""

from __future__ import annotations

from typing import Any

import pytest

from local_stack.rights.coverage import surprises
from local_stack.rights.evaluate import Need, Role, decide, statements_of
from local_stack.rights.roles import roles_of
from local_stack.template import TEMPLATE, Template


def role(*statements: dict[str, Any]) -> Role:
    return Role("R", statements_of("P", {"Version": "2012-10-17", "Statement": list(statements)}))


def allow(action: Any, resource: Any, **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


@pytest.mark.parametrize(
    ("action", "resource", "need", "expected"),
    [
        ("s3:GetObject", "arn:aws:s3:::b/*", Need("s3:GetObject", "arn:aws:s3:::b/k/l"), True),
        ("s3:getobject", "arn:aws:s3:::b/*", Need("s3:GetObject", "arn:aws:s3:::b/k"), True),
        ("s3:Get*", "*", Need("s3:GetObject", "arn:aws:s3:::b/k"), True),
        (["s3:Put?bject", "x:Y"], ["arn:aws:s3:::b/k"], Need("s3:PutObject", "arn:aws:s3:::b/k"), True),
        ("s3:GetObject", "arn:aws:s3:::b/*", Need("s3:PutObject", "arn:aws:s3:::b/k"), False),
        ("s3:GetObject", "arn:aws:s3:::b/*", Need("s3:GetObject", "arn:aws:s3:::bb/k"), False),
        ("s3:GetObject", "arn:aws:s3:::B/*", Need("s3:GetObject", "arn:aws:s3:::b/k"), False),
        ("s3:GetObject", "arn:aws:s3:::b/[k]", Need("s3:GetObject", "arn:aws:s3:::b/k"), False),
        ("s3:GetObject", "arn:aws:s3:::b", Need("s3:GetObject", "arn:aws:s3:::b/k"), False),
        ("s3:GetObjectVersion", "*", Need("s3:GetObject", "arn:aws:s3:::b/k"), False),
    ],
)
def test_action_and_resource(action: Any, resource: Any, need: Need, expected: bool) -> None:
    assert decide(role(allow(action, resource)), need).is_allowed is expected


def test_nothing_is_allowed_unless_it_is_said() -> None:
    assert not decide(role(), Need("s3:GetObject", "arn:aws:s3:::b/k")).is_allowed


def test_a_denial_wins_wherever_it_stands() -> None:
    need, deny = Need("s3:GetObject", "b"), {"Effect": "Deny", "Action": "s3:*", "Resource": "*"}
    for found in (role(allow("*", "*"), deny), role(deny, allow("*", "*"))):
        decision = decide(found, need)
        assert decision.is_denied_explicitly
        assert not decision.is_allowed


@pytest.mark.parametrize(
    ("condition", "context", "expected"),
    [
        ({"StringEquals": {"k": "v"}}, {"k": "v"}, True),
        ({"StringEquals": {"k": ["u", "v"]}}, {"k": "v"}, True),
        ({"StringEquals": {"k": "v*"}}, {"k": "vv"}, False),
        ({"StringEquals": {"k": "v"}}, {}, False),
        ({"StringEquals": {"k": "v", "l": "w"}}, {"k": "v"}, False),
        ({"StringEquals": {"k": "v"}, "StringLike": {"l": "w*"}}, {"k": "v", "l": "www"}, True),
        ({"StringLike": {"k": "v?"}}, {"k": "v"}, False),
        ({"StringNotEquals": {"k": "v"}}, {}, True),
        ({"StringNotLike": {"k": "v*"}}, {"k": "vv"}, False),
        ({"ArnLike": {"k": "arn:aws:s3:::*"}}, {"k": "arn:aws:s3:::b"}, True),
        ({"ArnEquals": {"k": "arn:aws:s3:::*"}}, {"k": "arn:aws:s3:::b"}, True),
        ({"Bool": {"k": "false"}}, {"k": "False"}, True),
        ({"Bool": {"k": "false"}}, {}, False),
    ],
)
def test_conditions(condition: Any, context: dict[str, str], expected: bool) -> None:
    need = Need("a:B", "r", context)
    assert decide(role(allow("a:B", "*", Condition=condition)), need).is_allowed is expected


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ({"Effect": "Allow", "NotAction": "s3:*", "Resource": "*"}, "NotAction"),
        ({"Effect": "Allow", "Action": "s3:*", "NotResource": "*"}, "NotResource"),
        (allow("s3:*", "*", Principal="*"), "Principal"),
        (allow("s3:*", "*", Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}), "IpAddress"),
        (allow("s3:*", "*", Condition={"StringEqualsIfExists": {"k": "v"}}), "StringEqualsIfExists"),
        ({**allow("s3:*", "*"), "Effect": "allow"}, "Effect"),
    ],
)
def test_what_is_not_known_is_no_allowance(statement: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        role(statement)


class TestCoverage:
    ROLE = role(allow(["s3:GetObject", "s3:PutObject"], ["b/one", "b/two"]), allow("s3:ListBucket", "b"))

    def found(self, *needs: Need, excused: dict[str, list[str]] | None = None) -> list[str]:
        calls = [frozenset(decide(self.ROLE, need).grants) for need in needs]
        return surprises([self.ROLE], calls, excused or {})

    def test_all_is_needed(self) -> None:
        needs = Need("s3:GetObject", "b/one"), Need("s3:PutObject", "b/two"), Need("s3:ListBucket", "b")
        assert self.found(*needs) == []

    def test_an_action_a_resource_and_a_policy_that_nobody_needs(self) -> None:
        assert self.found(Need("s3:GetObject", "b/one"), Need("s3:ListBucket", "b")) == [
            "P[0]: b/two is allowed, and no call needs it",
            "P[0]: s3:PutObject is allowed, and no call needs it",
        ]
        assert "R: P is allowed, and no call needs it" in self.found()

    def test_what_is_allowed_twice_is_needed_nowhere(self) -> None:
        twice = role(allow("s3:GetObject", "b"), allow("s3:Get*", "*"))
        grants = frozenset(decide(twice, Need("s3:GetObject", "b")).grants)
        assert len(surprises([twice], [grants], {})) == 4

    def test_an_excuse_covers_resources_once_it_covers_their_actions(self) -> None:
        excused = {"P": ["s3:GetObject", "s3:PutObject"]}
        assert self.found(Need("s3:ListBucket", "b"), excused=excused) == []
        assert self.found(excused={"P": ["s3:GetObject", "s3:PutObject", "s3:ListBucket"]}) == []

    def test_an_excuse_for_what_is_needed_or_not_there(self) -> None:
        needs = Need("s3:GetObject", "b/one"), Need("s3:PutObject", "b/two"), Need("s3:ListBucket", "b")
        assert self.found(*needs, excused={"P": ["s3:ListBucket", "s3:Other"]}) == [
            "P does not allow s3:Other, which is excused",
            "P: s3:ListBucket is needed, and excused",
        ]


def test_every_function_job_and_machine_of_the_template_has_its_role() -> None:
    template = Template(TEMPLATE, "stack", {"DataBucketArns": "arn:aws:s3:::one,arn:aws:s3:::two"})
    roles = roles_of(template)
    wanted = {
        template.role_of(logical_id, properties)
        for kind in ("AWS::Serverless::Function", "AWS::Serverless::StateMachine", "AWS::Glue::Job")
        for logical_id, properties in template.resources(kind)
    }
    assert wanted <= set(roles)
    detect = roles[template.role_of("DetectFunction", {})]
    assert decide(detect, Need("s3:GetObject", "arn:aws:s3:::two/t/data/f.parquet")).is_allowed
    assert not decide(detect, Need("s3:PutObject", "arn:aws:s3:::two/t/data/f.parquet")).is_allowed
    assert not decide(detect, Need("s3:GetObject", "arn:aws:s3:::three/t")).is_allowed
    deleting = {
        one.name for one in roles.values() if decide(one, Need("s3:DeleteObject", "arn:aws:s3:::one/f")).is_allowed
    }
    assert deleting == {
        *("ExpireSnapshotsFunctionRole", "RemoveOrphansFunctionRole", "CleanStagedFunctionRole"),
        "RemoveOrphansJobRole",
    }
