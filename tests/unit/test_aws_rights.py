"""The rights that requests need, and the roles that have them (rule: least-privilege-roles)."""

from __future__ import annotations

import json
from typing import Any

import botocore.parsers
import pytest

from local_stack.gate import needs_of
from local_stack.rights.api_needs import dynamodb_needs, glue_needs, lambda_needs, s3tables_needs, states_needs
from local_stack.rights.coverage import surprises
from local_stack.rights.denials import denial
from local_stack.rights.evaluate import Need, Role, decide, statements_of
from local_stack.rights.roles import roles_of
from local_stack.rights.s3_needs import s3_needs
from local_stack.template import TEMPLATE, Template
from local_stack.wire import WireRequest, signer
from support.stack_template import FOLDER

# The evaluator decides as IAM does, and finds unneeded rights (rule: least-privilege-roles).


def role(*statements: dict[str, Any]) -> Role:
    return Role("R", statements_of("P", {"Version": "2012-10-17", "Statement": list(statements)}))


def allow(action: Any, resource: Any, **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def test_a_statement_allows_its_actions_on_its_resources() -> None:
    for action, resource, need, expected in (
        ("s3:GetObject", "arn:aws:s3:::b/*", Need("s3:GetObject", "arn:aws:s3:::b/k/l"), True),
        ("s3:Get*", "*", Need("s3:GetObject", "arn:aws:s3:::b/k"), True),
        (["s3:Put?bject", "x:Y"], ["arn:aws:s3:::b/k"], Need("s3:PutObject", "arn:aws:s3:::b/k"), True),
        ("s3:GetObject", "arn:aws:s3:::b/*", Need("s3:PutObject", "arn:aws:s3:::b/k"), False),
        ("s3:GetObject", "arn:aws:s3:::b/*", Need("s3:GetObject", "arn:aws:s3:::bb/k"), False),
        ("s3:GetObject", "arn:aws:s3:::b/[k]", Need("s3:GetObject", "arn:aws:s3:::b/k"), False),
        ("s3:GetObjectVersion", "*", Need("s3:GetObject", "arn:aws:s3:::b/k"), False),
    ):
        assert decide(role(allow(action, resource)), need).is_allowed is expected, (action, resource)
    assert not decide(role(), Need("s3:GetObject", "arn:aws:s3:::b/k")).is_allowed


def test_a_denial_overrides_any_allowance() -> None:
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
        ({"StringNotEquals": {"k": "v"}}, {}, True),
        ({"StringNotLike": {"k": "v*"}}, {"k": "vv"}, False),
        ({"ArnLike": {"k": "arn:aws:s3:::*"}}, {"k": "arn:aws:s3:::b"}, True),
        ({"Bool": {"k": "false"}}, {"k": "False"}, True),
        ({"Bool": {"k": "false"}}, {}, False),
    ],
)
def test_conditions_are_evaluated_as_by_iam(condition: Any, context: dict[str, str], expected: bool) -> None:
    need = Need("a:B", "r", context)
    assert decide(role(allow("a:B", "*", Condition=condition)), need).is_allowed is expected


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ({"Effect": "Allow", "NotAction": "s3:*", "Resource": "*"}, "NotAction"),
        (allow("s3:*", "*", Principal="*"), "Principal"),
        (allow("s3:*", "*", Condition={"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}), "IpAddress"),
    ],
)
def test_unknown_elements_of_a_policy_are_errors(statement: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        role(statement)


def test_unneeded_rights_are_reported_unless_excused() -> None:
    ours = role(allow(["s3:GetObject", "s3:PutObject"], ["b/one", "b/two"]), allow("s3:ListBucket", "b"))

    def reported(*needs: Need, excused: dict[str, list[str]] | None = None) -> list[str]:
        return surprises([ours], [frozenset(decide(ours, need).grants) for need in needs], excused or {})

    everything = Need("s3:GetObject", "b/one"), Need("s3:PutObject", "b/two"), Need("s3:ListBucket", "b")
    assert reported(*everything) == []
    assert reported(everything[0], everything[2]) == [
        "P[0]: b/two is allowed, and no call needs it",
        "P[0]: s3:PutObject is allowed, and no call needs it",
    ]
    assert "R: P is allowed, and no call needs it" in reported()
    assert reported(everything[2], excused={"P": ["s3:GetObject", "s3:PutObject"]}) == []
    assert reported(*everything, excused={"P": ["s3:ListBucket", "s3:Other"]}) == [
        "P does not allow s3:Other, which is excused",
        "P: s3:ListBucket is needed, and excused",
    ]
    redundant = role(allow("s3:GetObject", "b"), allow("s3:Get*", "*"))
    grants = frozenset(decide(redundant, Need("s3:GetObject", "b")).grants)
    assert len(surprises([redundant], [grants], {})) == 4


def test_every_function_job_and_state_machine_has_its_role() -> None:
    template = Template(TEMPLATE, "stack", {"DataBucketArns": "arn:aws:s3:::one,arn:aws:s3:::two"})
    roles = roles_of(template)
    used_roles = {
        properties["Role"]
        for kind in ("AWS::Serverless::Function", "AWS::Serverless::StateMachine", "AWS::Glue::Job")
        for _, properties in template.resources(kind)
    }
    assert used_roles <= set(roles)
    (read,) = (role for role in roles.values() if role.name == "ReadFunctionRole")
    assert decide(read, Need("s3:GetObject", "arn:aws:s3:::two/t/data/f.parquet")).is_allowed
    assert not decide(read, Need("s3:PutObject", "arn:aws:s3:::two/t/data/f.parquet")).is_allowed
    assert not decide(read, Need("s3:GetObject", "arn:aws:s3:::three/t")).is_allowed
    deleting = {
        item.name for item in roles.values() if decide(item, Need("s3:DeleteObject", "arn:aws:s3:::one/f")).is_allowed
    }
    assert deleting == {*("ExpireFunctionRole", "DeleteFunctionRole", "ExpireSnapshotsJobRole", "RemoveOrphansJobRole")}


def test_a_folder_bounds_reads_writes_deletions_and_listings() -> None:
    """``DataBucketArns`` with a folder of one bucket, beside a whole bucket."""
    parameters = {**FOLDER, "DataBucketArns": f"arn:aws:s3:::whole,{FOLDER['DataBucketArns']}"}
    template = Template(TEMPLATE, "stack", parameters)
    (expire,) = (role for role in roles_of(template).values() if role.name == "ExpireFunctionRole")

    def may(action: str, resource: str, **context: str) -> bool:
        return decide(expire, Need(f"s3:{action}", f"arn:aws:s3:::{resource}", context)).is_allowed

    for action in ("GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload"):
        assert may(action, "shared/warehouse/t/data/f.parquet")
        assert may(action, "whole/anything")
        assert not may(action, "shared/warehouse2/t/data/f.parquet")
        assert not may(action, "shared/other")
        assert not may(action, "shared/warehouse")
    for prefix, expected in {"warehouse/t/data/": True, "warehouse/": True, "warehouse": False, "": False}.items():
        (need,) = s3_needs(WireRequest("s3", "GET", "/shared", f"list-type=2&prefix={prefix}", {}), lambda _: None)
        assert need.action == "s3:ListBucket"
        assert decide(expire, need).is_allowed is expected, prefix
    assert not may("ListBucket", "shared")
    assert not may("ListBucket", "other", **{"s3:prefix": "warehouse/"})
    assert may("ListBucket", "whole")


def test_only_functions_that_open_catalogs_read_the_given_secrets() -> None:
    secret = "arn:aws:secretsmanager:us-east-1:123456789012:secret:rest-a1B2c3"
    for given, expected in ({"CatalogSecretArns": secret}, True), ({}, False):
        template = Template(TEMPLATE, "stack", given)
        roles = roles_of(template)
        for _, properties in template.resources("AWS::Serverless::Function"):
            role = roles[properties["Role"]]
            opens = any(item.policy == "RunPolicy" for item in role.statements)
            assert decide(role, Need("secretsmanager:GetSecretValue", secret)).is_allowed is (expected and opens)
            assert not decide(role, Need("secretsmanager:GetSecretValue", f"{secret}x")).is_allowed


# The rights that a request needs, from its bytes (rule: least-privilege-roles).

DELETE = b'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Object><Key>a&amp;b</Key></Object></Delete>'
BUCKET = "arn:aws:s3tables:us-east-1:123456789012:bucket/lake"
TABLE, DATA = f"{BUCKET}/table/1", "/1--table-s3/data/f"


def s3(method: str, path: str, query: str = "", body: bytes = b"", **headers: str) -> list[str]:
    request = WireRequest("s3", method, path, query, {k.replace("_", "-"): v for k, v in headers.items()}, body)
    return [str(need) for need in s3_needs(request, lambda bucket: TABLE if bucket == "1--table-s3" else None)]


def test_rights_of_s3_requests() -> None:
    """A request that a table bucket does not support needs no right."""
    for method, path, query, expected in (
        ("GET", "/", "", "s3:ListAllMyBuckets on *"),
        ("GET", "/b", "list-type=2&prefix=p&encoding-type=url", "s3:ListBucket on arn:aws:s3:::b"),
        ("GET", "/b", "versions", "s3:ListBucketVersions on arn:aws:s3:::b"),
        ("GET", "/b/k/l", "", "s3:GetObject on arn:aws:s3:::b/k/l"),
        ("GET", "/b/k", "versionId=1", "s3:GetObjectVersion on arn:aws:s3:::b/k"),
        ("PUT", "/b/k", "", "s3:PutObject on arn:aws:s3:::b/k"),
        ("PUT", "/b/k", "partNumber=1&uploadId=u", "s3:PutObject on arn:aws:s3:::b/k"),
        ("DELETE", "/b/k", "uploadId=u", "s3:AbortMultipartUpload on arn:aws:s3:::b/k"),
        ("DELETE", "/b/k", "", "s3:DeleteObject on arn:aws:s3:::b/k"),
        ("GET", DATA, "", f"s3tables:GetTableData on {TABLE}"),
        ("PUT", DATA, "", f"s3tables:PutTableData on {TABLE}"),
        ("DELETE", DATA, "uploadId=u", f"s3tables:PutTableData on {TABLE}"),
    ):
        assert s3(method, path, query) == [expected], (method, path, query)
        if path == DATA:
            assert TABLE not in s3(method, "/2--table-s3/data/f", query)[0]  # an unknown table
    assert s3("POST", "/b", "delete", DELETE) == ["s3:DeleteObject on arn:aws:s3:::b/a&b"]
    assert s3("PUT", "/b/k", x_amz_copy_source="/c/l") == [
        "s3:PutObject on arn:aws:s3:::b/k",
        "s3:GetObject on arn:aws:s3:::c/l",
    ]
    assert s3("GET", "/1--table-s3", "list-type=2") == s3("DELETE", "/1--table-s3/f") == []
    tagged = {"x_amz_tagging": "a=b", "x_amz_acl": "bucket-owner-full-control"}
    actions = ["s3:PutObject", "s3:PutObjectTagging", "s3:PutObjectAcl"]
    assert s3("PUT", "/b/k", "", b"", **tagged) == [f"{action} on arn:aws:s3:::b/k" for action in actions]


def json_request(service: str, operation: str, document: Any) -> WireRequest:
    return WireRequest(service, "POST", "/", "", {"x-amz-target": f"X.{operation}"}, json.dumps(document).encode())


@pytest.mark.parametrize(
    ("operation", "document", "expected"),
    [
        ("Query", {"TableName": "T", "IndexName": "newest"}, ["Query on table/T/index/newest"]),
        ("BatchGetItem", {"RequestItems": {"T": {}, "U": {}}}, ["BatchGetItem on table/T", "BatchGetItem on table/U"]),
        (
            "TransactWriteItems",
            {"TransactItems": [{"Put": {"TableName": "T"}}, {"ConditionCheck": {"TableName": "U"}}]},
            ["PutItem on table/T", "ConditionCheckItem on table/U"],
        ),
    ],
)
def test_rights_of_dynamodb_requests(operation: str, document: Any, expected: list[str]) -> None:
    found = [str(need) for need in dynamodb_needs(json_request("dynamodb", operation, document))]
    assert [text.replace("arn:aws:dynamodb:us-east-1:123456789012:", "") for text in found] == [
        f"dynamodb:{item}" for item in expected
    ]


def test_the_report_writes_no_record_that_decides_what_may_be_deleted() -> None:
    """Every write names its partition, which the role's ``dynamodb:LeadingKeys`` bound."""
    key, other = {"pk": {"S": "table#1"}, "sk": {"S": "x"}}, {"pk": {"S": "claims#1"}, "sk": {"S": "x"}}
    template = Template(TEMPLATE, "stack", {})
    table, roles = template.name("StateTable"), {role.name: role for role in roles_of(template).values()}

    def may(role: str, operation: str, **document: Any) -> bool:
        needs = list(dynamodb_needs(json_request("dynamodb", operation, {"TableName": table, **document})))
        assert needs
        return all(decide(roles[role], need).is_allowed for need in needs)

    for keys, expected in (((key,), True), ((other,), False), ((key, other), False)):
        writes: dict[str, dict[str, Any]] = {
            "BatchWriteItem": {"RequestItems": {table: [{"DeleteRequest": {"Key": each}} for each in keys]}},
            "TransactWriteItems": {"TransactItems": [{"Put": {"TableName": table, "Item": each}} for each in keys]},
            "PutItem": {"Item": keys[-1]},
            "DeleteItem": {"Key": keys[-1]},
            "UpdateItem": {"Key": keys[-1]},
        }
        for operation, document in writes.items():
            assert may("ReportFunctionRole", operation, **document) is expected, (operation, keys)
            assert may("ExpireFunctionRole", operation, **document), operation
    assert may("ReportFunctionRole", "GetItem", Key=other)


@pytest.mark.parametrize(
    ("operation", "document", "expected"),
    [
        ("UpdateTable", {"DatabaseName": "d", "TableInput": {"Name": "t"}}, ["catalog", "database/d", "table/d/t"]),
        ("GetTables", {"DatabaseName": "d"}, ["catalog", "database/d", "table/d/*"]),
        ("GetDatabases", {}, ["catalog", "database/*"]),
        ("StartJobRun", {"JobName": "j"}, ["job/j"]),
    ],
)
def test_glue_needs_rights_on_the_catalog_and_database_above_a_table(
    operation: str, document: Any, expected: list[str]
) -> None:
    found = list(glue_needs(json_request("glue", operation, document)))
    assert {need.action for need in found} == {f"glue:{operation}"}
    assert [need.resource.removeprefix("arn:aws:glue:us-east-1:123456789012:") for need in found] == expected


def test_rights_of_step_functions_lambda_and_secrets_requests() -> None:
    arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:rest-a1B2c3"
    read = json_request("secretsmanager", "GetSecretValue", {"SecretId": arn})
    assert [str(need) for need in needs_of(read)] == [f"secretsmanager:GetSecretValue on {arn}"]
    started = json_request("states", "StartExecution", {"stateMachineArn": "arn:m", "input": "{}"})
    invoked = WireRequest("lambda", "POST", "/2015-03-31/functions/f/invocations")
    assert [str(need) for need in states_needs(started)] == ["states:StartExecution on arn:m"]
    assert [str(need) for need in lambda_needs(invoked)] == [
        "lambda:InvokeFunction on arn:aws:lambda:us-east-1:123456789012:function:f"
    ]


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/buckets", "", "s3tables:ListTableBuckets on *"),
        ("PUT", f"/tables/{BUCKET}/ns/t/metadata-location", "", f"s3tables:UpdateTableMetadataLocation on {TABLE}"),
        (
            *("PUT", f"/tables/{BUCKET}/ns/t/maintenance/icebergCompaction", ""),
            f"s3tables:PutTableMaintenanceConfiguration on {TABLE}",
        ),
        (*("GET", "/get-table", f"tableBucketARN={BUCKET}&namespace=ns&name=t"), f"s3tables:GetTable on {TABLE}"),
        ("GET", "/nowhere", "", "s3tables:GET/nowhere on *"),
    ],
)
def test_rights_of_s3_tables_requests(method: str, path: str, query: str, expected: str) -> None:
    found = s3tables_needs(WireRequest("s3tables", method, path, query), lambda bucket, namespace, name: TABLE)
    assert [str(need) for need in found] == [expected]


def test_the_signer_of_a_request_is_read_from_its_signature() -> None:
    signed = "AWS4-HMAC-SHA256 Credential=KEY/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
    assert signer(signed) == ("KEY", "s3")
    assert signer("") == signer("Bearer token") == ("", "")


def test_a_denial_has_the_form_of_its_protocol() -> None:
    need = Need("s3:GetObject", "arn:aws:s3:::b/k")
    object_ = denial(WireRequest("s3", "GET", "/b/k"), "R", need)
    assert object_.status.startswith("403")
    assert b"<Code>AccessDenied</Code>" in object_.body
    assert b"assumed-role/R/local is not authorized to perform: s3:GetObject on resource" in object_.body
    assert denial(WireRequest("s3", "HEAD", "/b/k"), "R", need).body == b""
    many = denial(WireRequest("s3", "POST", "/b", "delete", {}, DELETE), "R", need)
    assert many.status.startswith("200")
    assert b"<Error><Key>a&amp;b</Key><Code>AccessDenied</Code>" in many.body
    table = denial(json_request("dynamodb", "GetItem", {}), "R", need)
    assert table.status.startswith("400")
    assert json.loads(table.body)["__type"] == "AccessDeniedException"
    assert denial(WireRequest("s3tables", "GET", "/buckets"), "R", need).status.startswith("403")


# AWS STS (rule: least-privilege-roles).

ROLE = "arn:aws:iam::123456789012:role/other"


def test_assuming_a_role_needs_a_right_and_clients_parse_the_denial() -> None:
    identity = b"Action=GetCallerIdentity&Version=2011-06-15"
    assume = f"Action=AssumeRole&RoleArn={ROLE}".encode()
    for query, body, needs in (
        ("", identity, []),
        (identity.decode(), b"", []),
        ("", assume, [Need("sts:AssumeRole", ROLE)]),
        ("", b"", [Need("sts:POST", "*")]),
    ):
        assert list(needs_of(WireRequest("sts", "POST", "/", query, body=body))) == needs
    answer = denial(WireRequest("sts", "POST", "/"), "R", Need("sts:AssumeRole", ROLE))
    parsed = botocore.parsers.create_parser("query").parse(
        {"body": answer.body, "headers": dict(answer.headers), "status_code": int(answer.status[:3])}, None
    )
    assert (parsed["Error"]["Code"], "sts:AssumeRole" in parsed["Error"]["Message"]) == ("AccessDenied", True)
