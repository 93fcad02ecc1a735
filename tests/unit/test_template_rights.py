"""The rights and limits of each function and job of template.yaml."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from icekeeper.operation_facts import STEP_FACTS, Limit
from icekeeper.state.item_layout import REQUESTS
from support.stack_template import (
    FUNCTIONS,
    JOBS,
    PARAMETERS,
    RESOURCES,
    ROOT,
    SINGLE,
    VPC,
    actions,
    of_type,
    referred,
    render,
    role_of,
    statements,
    strings,
    wildcards,
)

READ, COMMIT, DELETE = "read", "commit", "delete"
POLICIES: Mapping[str, set[str]] = {
    READ: {"ListTableBucketsPolicy", "ReadTableBucketsPolicy", "ReadTablesPolicy"},
    COMMIT: {"CommitTableBucketsPolicy", "CommitTablesPolicy"},
    DELETE: {"DeleteFilesPolicy"},
}
"""The rights to tables, each in as many policies as IAM's character limit requires."""
MAY: Mapping[str, set[str]] = {
    # list_orphans deletes a key that never existed, to find out whether the store allows deletion.
    "read": {READ},
    "commit": {READ, COMMIT},
    "expire": {READ, COMMIT, DELETE},
    "delete": {READ, DELETE},
    "report": set(),
}
"""The rights of each function to tables.  State which work needs a right before adding it here."""
JOBS_MAY: Mapping[str, set[str]] = {
    "compact_data_files": {READ, COMMIT},
    "expire_snapshots": {READ, COMMIT, DELETE},
    "rewrite_manifests": {READ, COMMIT},
    "remove_orphans": {READ, DELETE},
}


def table_rights(policies: Any) -> set[str]:
    """The rights that these policies grant; none may be granted in part."""
    named = referred(policies) & {name for names in POLICIES.values() for name in names}
    found = {right for right, names in POLICIES.items() if names <= named}
    assert named == {name for right in found for name in POLICIES[right]}
    return found


class TestRights:
    def test_every_wildcard_has_a_comment_with_its_reason(self) -> None:
        assert [(w.line, w.text) for w in wildcards() if not w.is_justified] == [], "no '# wildcard: why' above it"
        text = 'A:\n  Action: s3:Get*\n  # wildcard: of everything that there is\n  Resource: "*"\n  Principal: "*"\n'
        assert [(w.line, w.is_justified) for w in wildcards(text)] == [(2, False), (4, True)]

    def test_no_allowed_action_has_a_wildcard(self) -> None:
        assert not [action for action in actions(RESOURCES) if "*" in action]

    def test_each_function_and_job_has_exactly_the_rights_of_its_work(self) -> None:
        assert {role: table_rights(role_of(properties)) for role, (_, properties) in FUNCTIONS.items()} == MAY
        assert {script: table_rights(role_of(properties)) for script, (_, properties) in JOBS.items()} == JOBS_MAY

    def test_deleting_and_committing_are_separate_policies_and_the_others_only_read(self) -> None:
        def holders(pattern: str) -> set[str]:
            return {
                name for name, item in RESOURCES.items() if any(re.match(pattern, action) for action in actions(item))
            }

        assert holders(r"(s3|s3tables|glue):Delete") == POLICIES[DELETE]
        assert holders(r"s3tables:(Put|Update|Create|Rename)|glue:(Update|Create)") == POLICIES[COMMIT]
        reading = {action for name in POLICIES[READ] for action in actions(RESOURCES[name])}
        assert [action for action in reading if not re.match(r"\w+:(Get|List|Decrypt)", action)] == []

    def test_roles_that_read_tables_may_assume_the_roles_of_catalogs(self) -> None:
        for properties in [*(item for _, item in FUNCTIONS.values()), *(item for _, item in JOBS.values())]:
            policies = referred(role_of(properties)["ManagedPolicyArns"])

            assert ("AssumeRolesPolicy" in policies) == ("ReadTablesPolicy" in policies), properties["Description"]
        (statement,) = statements(RESOURCES["AssumeRolesPolicy"])
        assert (statement["Action"], statement["Resource"]) == ("sts:AssumeRole", {"Ref": "AssumableRoleArns"})

    def test_other_services_assume_a_role_only_for_resources_of_this_stack(self) -> None:
        """Scheduler and Step Functions document the keys for trust policies.  No page guarantees that Lambda sends
        ``aws:SourceArn`` or that Glue sends ``aws:SourceAccount``; if they do, the values must be ours."""
        arn = "arn:${{AWS::Partition}}:{0}:${{AWS::Region}}:${{AWS::AccountId}}:{1}".format
        account = {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}
        machine = {"Fn::Sub": arn("states", "stateMachine:${AWS::StackName}-maintain-tables*")}
        function = {"Fn::Sub": arn("lambda", "function:${AWS::StackName}-*")}
        expected = {
            "scheduler": {
                "StringEquals": account,
                "ArnEquals": {"aws:SourceArn": {"Fn::Sub": arn("scheduler", "schedule-group/default")}},
            },
            "states": {"StringEquals": account, "ArnLike": {"aws:SourceArn": machine}},
            "lambda": {"ArnLikeIfExists": {"aws:SourceArn": function}},
            "glue": {"StringEqualsIfExists": account},
        }
        assert "GroupName" not in RESOURCES["Schedule"]["Properties"], "without it the schedule is of the group default"
        seen = set()
        for name, role in of_type("AWS::IAM::Role").items():
            (statement,) = role["AssumeRolePolicyDocument"]["Statement"]
            service = statement["Principal"]["Service"].partition(".")[0]
            assert statement["Condition"] == expected[service], name
            seen.add(service)
        assert seen == expected.keys()
        for role_name, (_, properties) in FUNCTIONS.items():
            assert properties["FunctionName"]["Fn::Sub"].startswith("${AWS::StackName}-"), role_name
        assert RESOURCES["MaintainTablesStateMachine"]["Properties"]["Name"] == {
            "Fn::Sub": "${AWS::StackName}-maintain-tables"
        }

    def test_inline_policies_grant_no_rights_to_tables(self) -> None:
        expected = {
            "read": {"${ControlBucket.Arn}/detection/cursor.json"},
            "report": {"${ControlBucket.Arn}/report/index.html", "${StateTable.Arn}/index/newest"},
        }
        for role, (_, properties) in FUNCTIONS.items():
            inside = role_of(properties).get("Policies", [])
            resources = {text for found in statements(inside) for text in strings(found["Resource"])}
            assert resources == expected.get(role, set()), role
        assert [script for script, (_, job) in JOBS.items() if "Policies" in role_of(job)] == []

    def test_policies_allow_only_the_given_tables(self) -> None:
        given = {"TableBucketArns", "DataBucketArns", "GlueDataCatalogArns", "KmsKeyArns"}
        for name in set.union(*POLICIES.values()):
            for statement in statements(RESOURCES[name]):
                if statement["Action"] in ("s3tables:ListTableBuckets", ["glue:GetDatabases", "glue:GetTables"]):
                    continue  # only their names
                if statement["Resource"] == {"Ref": "ListedBucketArns"}:
                    assert (statement["Action"], list(statement["Condition"])) == ("s3:ListBucket", ["StringLike"])
                    continue  # only names in folders
                if statement["Action"] == "lakeformation:GetDataAccess":
                    continue  # Lake Formation's own grants name tables
                catalog = {"Fn::Sub": "arn:${AWS::Partition}:glue:${AWS::Region}:${AWS::AccountId}:catalog"}
                assert statement["Resource"] == catalog or referred(statement["Resource"]) & given, (name, statement)

    def test_only_the_operator_writes_the_configuration(self) -> None:
        """The policy file and the catalogs decide what Icekeeper may do; digests identify the documents of runs."""
        writable = {
            text
            for resource in RESOURCES.values()
            for statement in statements(resource)
            if "s3:PutObject" in strings(statement["Action"]) and "ControlBucket" in referred(statement["Resource"])
            for text in strings(statement["Resource"])
        }
        places = ("runs/*", "detection/cursor.json", "report/index.html", "spark-logs/*")
        assert writable == {f"${{ControlBucket.Arn}}/{place}" for place in places}

    def test_the_docs_give_people_no_right_of_the_operator(self) -> None:
        """A caller of a function or job acts with its role and can pass it forged documents
        (rule: documents-are-not-trusted)."""
        policies: dict[str, list[Any]] = {}
        for path in (ROOT / "docs").rglob("*.md"):
            for found in re.findall(r"^ {4}(\{\"Version\".*?\]\})$", path.read_text(), re.DOTALL | re.MULTILINE):
                policies.setdefault(path.name, []).extend(json.loads(found)["Statement"])
        assert "requests.md" in policies
        for page, policy in policies.items():
            for statement in policy:
                granted = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
                for action in granted:
                    verb = action.partition(":")[2]
                    assert re.match(r"(Get|List|Describe|Query|BatchGet)", verb) or (page, action) in {
                        ("requests.md", "states:StartExecution"),
                        ("requests.md", "dynamodb:PutItem"),
                    }, (page, action)
        (put,) = [item for item in policies["requests.md"] if item["Action"] == "dynamodb:PutItem"]
        assert put["Condition"] == {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [REQUESTS]}}


class TestLimits:
    def test_the_disk_of_a_compacting_function_holds_the_largest_compaction(self) -> None:
        """A sort needs three bytes of disk per byte read, and reads up to twice the planned bytes
        (``function_bears_mb``)."""
        limited = {step.function for step in STEP_FACTS if step.job and step.job.limit is Limit.COMPACTION_BYTES}
        assert limited
        for role in limited:
            disk_mb = FUNCTIONS[role][1]["EphemeralStorage"]["Size"]
            assert PARAMETERS["SmallCompactionMb"]["MaxValue"] * 2 * 3 <= disk_mb, role

    def test_overlapping_runs_of_the_state_machine_start_the_same_job(self) -> None:
        """Each starts at most one run of a job; Glue admits a single run where the template does not say more."""
        for script, (_, job) in JOBS.items():
            assert job["ExecutionProperty"]["MaxConcurrentRuns"] == 100, script
            assert job["DefaultArguments"]["--job-bookmark-option"] == "job-bookmark-disable"


def test_all_glue_tables_may_be_listed_and_only_given_tables_read_and_changed() -> None:
    """GetDatabases needs a right to every database; an operation that deletes files must know every table
    (rule: ask-neighbours-before-deleting)."""
    allowed: dict[str, list[Any]] = {}
    for policy in ("ReadTablesPolicy", "CommitTablesPolicy"):
        for statement in statements(RESOURCES[policy]):
            resources = statement["Resource"]
            for action in strings(statement["Action"]):
                allowed.setdefault(action, []).extend(resources if isinstance(resources, list) else [resources])
    own = "arn:${AWS::Partition}:glue:${AWS::Region}:${AWS::AccountId}:"
    listed = [{"Fn::Sub": f"{own}{what}"} for what in ("catalog", "database/*", "table/*")]
    given = [{"Ref": "GlueDataCatalogArns"}, {"Fn::Sub": f"{own}catalog"}]
    assert allowed["glue:GetDatabases"] == allowed["glue:GetTables"] == [{"Ref": "GlueDataCatalogArns"}, *listed]
    assert allowed["glue:GetTable"] == allowed["glue:UpdateTable"] == given
    changing = {action for action in allowed if re.match("glue:(?!Get)", action)}
    assert changing == {"glue:UpdateTable"}


# The length of parameters that policies repeat: IAM allows 6,144 characters per managed policy.

KMS = "arn:aws-us-gov:kms:us-gov-west-1:123456789012:key/00000000-0000-0000-0000-000000000000"


def test_parameters_up_to_the_documented_length_fit_into_every_policy() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    sentence = re.search(
        r"twice the characters of\s`DataBucketArns`\s[^.]*?`ListedPrefixes`[^.]*? at most ([\d,]+)", page
    )
    assert sentence is not None
    limit = int(sentence[1].replace(",", ""))
    catalogs, bucket = "arn:aws-us-gov:glue:us-gov-west-1:123456789012:database/sales", "arn:aws-us-gov:s3:::{:024}"
    listed = {"ListedBucketArns": "arn:aws-us-gov:s3:::lake", "ListedPrefixes": "warehouse"}
    left = limit - len(KMS) - len(catalogs) - sum(map(len, listed.values()))
    buckets = ",".join(bucket.format(number) for number in range(left // 2 // (len(bucket.format(0)) + 1)))
    tables = {"DataBucketArns": buckets, "GlueDataCatalogArns": catalogs, "KmsKeyArns": KMS, **listed}
    stack = render({**SINGLE, **VPC, **tables})

    assert left - 2 * len(buckets) < 2 * 46  # the largest number that fits
    assert {name: grant.length for name, grant in stack.managed.items() if grant.length > 6144} == {}
