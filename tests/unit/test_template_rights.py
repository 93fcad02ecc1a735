"""What each function and job of template.yaml may do."""

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
    camel,
    of_type,
    referred,
    render,
    role_of,
    statements,
    strings,
    wildcards,
)

# What each function and job of template.yaml may do, and how it runs.

READ, READ_OUTSIDE, COMMIT, DELETE = "read", "read outside of table buckets", "commit", "delete"
POLICIES: Mapping[str, set[str]] = {
    READ: {"ListTableBucketsPolicy", "ReadTableBucketsPolicy", "ReadTablesPolicy"},
    READ_OUTSIDE: {"ReadTablesPolicy"},
    COMMIT: {"CommitTableBucketsPolicy", "CommitTablesPolicy"},
    DELETE: {"DeleteFilesPolicy"},
}
"""The rights to tables, each in as many policies as IAM's limit of characters asks for."""
MAY: Mapping[str, set[str]] = {
    "detect": {READ},
    "plan": {READ},
    "expire_partitions": {READ, COMMIT},
    "compact_small": {READ, COMMIT},
    "expire_snapshots": {READ, COMMIT, DELETE},
    # It asks the storage, by deleting what never existed, whether deleting is possible at all.
    "list_orphans": {READ},
    # Orphans of table buckets are never known, because nobody lists their files.
    "remove_orphans": {READ_OUTSIDE, DELETE},
    "rewrite_manifests": {READ, COMMIT},
    "clean_staged": {READ, DELETE},
    "report": set(),
}
"""What each function may do to tables.  Whoever adds a right here must be able to say which work needs it."""
JOBS_MAY: Mapping[str, set[str]] = {
    "compact_data_files": {READ, COMMIT},
    "rewrite_manifests": {READ, COMMIT},
    "remove_orphans": {READ, DELETE},
}


def table_rights(policies: Any) -> set[str]:
    """Those that are given whole; none may be given in part."""
    named = referred(policies) & {name for names in POLICIES.values() for name in names}
    found = {right for right, names in POLICIES.items() if names <= named}
    found -= {READ_OUTSIDE} if READ in found else set()
    assert named == {name for right in found for name in POLICIES[right]}
    return found


class TestRights:
    def test_every_wildcard_says_why(self) -> None:
        assert [(w.line, w.text) for w in wildcards() if not w.is_justified] == [], "no '# wildcard: why' above it"
        text = 'A:\n  Action: s3:Get*\n  # wildcard: of everything that there is\n  Resource: "*"\n  Principal: "*"\n'
        assert [(w.line, w.is_justified) for w in wildcards(text)] == [(2, False), (4, True)]

    def test_no_action_that_is_allowed_is_a_wildcard(self) -> None:
        assert not [action for action in actions(RESOURCES) if "*" in action]

    def test_each_function_may_do_what_its_work_needs(self) -> None:
        found = {role: table_rights(role_of(properties)) for role, (_, properties) in FUNCTIONS.items()}

        assert found == MAY

    def test_each_job_may_do_what_its_work_needs(self) -> None:
        found = {}
        for script, (_, properties) in JOBS.items():
            role = role_of(properties)
            assert "Policies" not in role
            found[script] = table_rights(role["ManagedPolicyArns"])

        assert found == JOBS_MAY

    def test_who_reads_tables_may_take_the_roles_of_their_catalogs(self) -> None:
        for properties in [*(one for _, one in FUNCTIONS.values()), *(one for _, one in JOBS.values())]:
            named = referred(role_of(properties)["ManagedPolicyArns"])

            assert ("AssumeRolesPolicy" in named) == ("ReadTablesPolicy" in named), properties["Description"]
        (statement,) = statements(RESOURCES["AssumeRolesPolicy"])
        assert (statement["Action"], statement["Resource"]) == ("sts:AssumeRole", {"Ref": "AssumableRoleArns"})

    def test_other_services_take_a_role_only_for_what_is_of_this_stack(self) -> None:
        """Scheduler and Step Functions document the keys for trust policies.  No page says that Lambda sends
        ``aws:SourceArn`` each time, nor that Glue sends ``aws:SourceAccount``; where they do, only ours count."""
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

    def test_only_one_policy_allows_to_delete_files(self) -> None:
        deleting = {
            name
            for name, resource in RESOURCES.items()
            for action in actions(resource)
            if action.startswith(("s3:Delete", "s3tables:Delete", "glue:Delete"))
        }

        assert deleting == POLICIES[DELETE]

    def test_only_one_policy_allows_to_change_tables(self) -> None:
        changing = {
            name
            for name, resource in RESOURCES.items()
            for action in actions(resource)
            if re.match(r"s3tables:(Put|Update|Create|Rename)|glue:(Update|Create)", action)
        }

        assert changing == POLICIES[COMMIT]

    def test_reading_tables_is_only_reading(self) -> None:
        reading = {action for name in POLICIES[READ] for action in actions(RESOURCES[name])}
        verbs = {re.match(r"(Get|List|Decrypt)", action.split(":")[1]) for action in reading}

        assert None not in verbs

    def test_every_function_may_remember_what_it_does(self) -> None:
        """For its state, and for Powertools' idempotency, which is kept in the same table (pk "idempotency")."""
        needed = {f"dynamodb:{verb}Item" for verb in ("Get", "Put", "Update", "Delete")}

        assert needed <= actions(RESOURCES["StateAccessPolicy"])
        assert "StateTable" in referred(RESOURCES["StateAccessPolicy"])
        for role, (_, properties) in FUNCTIONS.items():
            assert "StateAccessPolicy" in referred(role_of(properties)), role
        store = RESOURCES["StateTable"]["Properties"]
        assert [key["AttributeName"] for key in store["KeySchema"]] == ["pk", "sk"]
        assert store["TimeToLiveSpecification"]["AttributeName"] == "expires_s"

    def test_no_function_holds_rights_to_tables_of_its_own(self) -> None:
        expected = {
            "detect": {"${ControlBucket.Arn}/detection/cursor.json"},
            "report": {"${ControlBucket.Arn}/report/index.html", "${StateTable.Arn}/index/newest"},
        }
        for role, (_, properties) in FUNCTIONS.items():
            inside = role_of(properties).get("Policies", [])
            own = {text for found in statements(inside) for text in strings(found["Resource"])}
            assert own == expected.get(role, set()), role

    def test_tables_are_only_those_that_were_given(self) -> None:
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
        """The policy file and the catalogs say what everybody may do; documents of runs are told apart by digests."""
        writable = {
            text
            for resource in RESOURCES.values()
            for statement in statements(resource)
            if "s3:PutObject" in strings(statement["Action"]) and "ControlBucket" in referred(statement["Resource"])
            for text in strings(statement["Resource"])
        }
        places = ("runs/*", "detection/cursor.json", "report/index.html")
        assert writable == {f"${{ControlBucket.Arn}}/{place}" for place in places}

    def test_people_get_no_right_of_the_operator(self) -> None:
        """Whoever may call a function or start a job works with its role, and by documents of his own
        (rule: documents-are-not-trusted)."""
        given: dict[str, list[Any]] = {}
        for path in (ROOT / "docs").rglob("*.md"):
            for found in re.findall(r"^ {4}(\{\"Version\".*?\]\})$", path.read_text(), re.DOTALL | re.MULTILINE):
                given.setdefault(path.name, []).extend(json.loads(found)["Statement"])
        assert "requests.md" in given
        for page, policy in given.items():
            for statement in policy:
                granted = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
                for action in granted:
                    verb = action.partition(":")[2]
                    assert re.match(r"(Get|List|Describe|Query|BatchGet)", verb) or (page, action) in {
                        ("requests.md", "states:StartExecution"),
                        ("requests.md", "dynamodb:PutItem"),
                    }, (page, action)
        (put,) = [one for one in given["requests.md"] if one["Action"] == "dynamodb:PutItem"]
        assert put["Condition"] == {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [REQUESTS]}}

    def test_the_state_machine_may_start_what_it_names(self) -> None:
        role = RESOURCES["StateMachineRole"]["Properties"]["Policies"]
        invoked = next(found for found in statements(role) if found["Action"] == "lambda:InvokeFunction")

        assert referred(invoked["Resource"]) == {name for name, _ in FUNCTIONS.values()}
        assert {name for name, _ in JOBS.values()} <= referred(role)


class TestFunctions:
    def test_are_named_after_their_folders(self) -> None:
        assert {name for name, _ in FUNCTIONS.values()} == {f"{camel(role)}Function" for role in FUNCTIONS}
        assert {handler.parent.name for handler in (ROOT / "functions").glob("*/handler.py")} <= set(FUNCTIONS)
        assert set(FUNCTIONS) == set(MAY)

    def test_each_has_its_logs_which_end(self) -> None:
        for role, (name, properties) in FUNCTIONS.items():
            logs = RESOURCES[properties["LoggingConfig"]["LogGroup"]["Ref"]]["Properties"]
            function = properties["FunctionName"]["Fn::Sub"]
            assert logs["LogGroupName"] == {"Fn::Sub": f"/aws/lambda/{function}"}, role
            assert referred(properties["LoggingConfig"]) == {name.replace("Function", "LogGroup")}

    def test_the_disk_of_who_compacts_holds_the_largest_compaction_that_can_be_chosen(self) -> None:
        """Rows that are sorted take three bytes for each that is read, of twice what was planned
        (``function_bears_mb``)."""
        limited = {step.function for step in STEP_FACTS if step.job and step.job.limit is Limit.COMPACTION_BYTES}

        assert limited
        for role in limited:
            disk_mb = FUNCTIONS[role][1]["EphemeralStorage"]["Size"]
            assert PARAMETERS["SmallCompactionMb"]["MaxValue"] * 2 * 3 <= disk_mb, role


class TestJobs:
    def test_run_scripts_that_exist_and_are_bounded(self) -> None:
        assert {path.stem for path in (ROOT / "glue_jobs").glob("*.py")} <= set(JOBS_MAY) == set(JOBS)
        assert {script: name for script, (name, _) in JOBS.items()} == {s: f"{camel(s)}Job" for s in JOBS}
        for script, (_, job) in JOBS.items():
            runs = job["ExecutionProperty"]["MaxConcurrentRuns"]
            assert runs >= 2 * PARAMETERS["MaxConcurrentTables"]["MaxValue"], script
            assert job["DefaultArguments"]["--job-bookmark-option"] == "job-bookmark-disable"


# What the template lets functions and jobs do in the Glue Data Catalog: list all of it, and touch what was given.

_OWN = "arn:${AWS::Partition}:glue:${AWS::Region}:${AWS::AccountId}:"


def allowed(policy: str) -> dict[str, list[Any]]:
    """Action → what it is allowed on."""
    found: dict[str, list[Any]] = {}
    for statement in statements(RESOURCES[policy]):
        actions, resources = statement["Action"], statement["Resource"]
        for action in [actions] if isinstance(actions, str) else actions:
            found.setdefault(action, []).extend(resources if isinstance(resources, list) else [resources])
    return found


def test_the_whole_catalog_can_be_listed() -> None:
    """Glue asks for every database where databases are listed; who deletes files must know every table
    (rule: ask-neighbours-before-deleting)."""
    rights = allowed("ReadTablesPolicy")
    everything = [{"Fn::Sub": f"{_OWN}{what}"} for what in ("catalog", "database/*", "table/*")]
    for action in ("glue:GetDatabases", "glue:GetTables"):
        assert rights[action] == [{"Ref": "GlueDataCatalogArns"}, *everything], action


def test_only_what_was_given_can_be_read_and_changed() -> None:
    given = [{"Ref": "GlueDataCatalogArns"}, {"Fn::Sub": f"{_OWN}catalog"}]
    read, commit = allowed("ReadTablesPolicy"), allowed("CommitTablesPolicy")
    assert (read["glue:GetTable"], commit["glue:UpdateTable"]) == (given, given)
    assert {action for action in commit if action.startswith("glue:")} == {"glue:UpdateTable"}


def test_lake_formation_may_be_asked_for_access() -> None:
    assert allowed("ReadTablesPolicy")["lakeformation:GetDataAccess"] == ["*"]


# How long the parameters may be that policies repeat: IAM takes 6,144 characters a managed policy.

KMS = "arn:aws-us-gov:kms:us-gov-west-1:123456789012:key/00000000-0000-0000-0000-000000000000"


def test_tables_outside_of_table_buckets_fit_as_far_as_the_page_says() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    said = re.search(r"twice the characters of\s`DataBucketArns`\s[^.]*?`ListedPrefixes`[^.]*? at most ([\d,]+)", page)
    assert said is not None
    limit = int(said[1].replace(",", ""))
    catalogs, bucket = "arn:aws-us-gov:glue:us-gov-west-1:123456789012:database/sales", "arn:aws-us-gov:s3:::{:024}"
    listed = {"ListedBucketArns": "arn:aws-us-gov:s3:::lake", "ListedPrefixes": "warehouse"}
    left = limit - len(KMS) - len(catalogs) - sum(map(len, listed.values()))
    buckets = ",".join(bucket.format(number) for number in range(left // 2 // (len(bucket.format(0)) + 1)))
    tables = {"DataBucketArns": buckets, "GlueDataCatalogArns": catalogs, "KmsKeyArns": KMS, **listed}
    stack = render({**SINGLE, **VPC, **tables})

    assert left - 2 * len(buckets) < 2 * 46  # as many as there may be
    assert {name: grant.length for name, grant in stack.managed.items() if grant.length > 6144} == {}
