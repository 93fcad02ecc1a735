"""SAM CLI over template.yaml: it validates, lints, builds, and publishes no versions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from local_stack.moto_server import MotoServer
from local_stack.stack import ROOT, LocalStack, deployed
from local_stack.template import ACCOUNT, REGION, TEMPLATE
from support.local_lake import LocalLake
from support.sam_environment import seen_by_sam, variables_of
from support.sent_events import SentEvents
from support.stack_template import FUNCTIONS, SINGLE, TABLES, VPC, combinations, refusals, render

SAM = Path(os.environ["SAM_CLI"])
PARAMETERS = {
    "ArtifactLocation": "s3://artifacts/icekeeper/1",
    "TableBucketArns": f"arn:aws:s3tables:{REGION}:{ACCOUNT}:bucket/lake",
    "Ownership": "auto",
    "DataBucketArns": "arn:aws:s3:::lake",
    "SmallCompactionMb": "1280",  # so that every function has work
}
ENVIRONMENT = {**os.environ, "SAM_CLI_TELEMETRY": "0", "AWS_DEFAULT_REGION": REGION}


def sam(*arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    command = [str(SAM), *arguments]
    return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=timeout)


@dataclass(frozen=True)
class Seen:
    """SAM's view of the template, for a local stack."""

    stack: LocalStack
    environments: Mapping[str, Mapping[str, str]]
    roles: Mapping[str, Any]


@pytest.fixture(scope="module")
def seen(moto_server: MotoServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    with deployed(moto_server) as stack:
        document = seen_by_sam(variables_of(stack, "local"), PARAMETERS, tmp_path_factory.mktemp("sam"))
        yield Seen(stack, document["environments"], document["roles"])


def test_the_template_is_valid_to_sam() -> None:
    done = sam("validate", "--lint", "--region", REGION, "--template", str(TEMPLATE))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "is a valid SAM Template" in done.stdout


def test_sam_builds_every_function_with_its_handler(tmp_path: Path) -> None:
    done = sam("build", "--template", str(TEMPLATE), "--build-dir", str(tmp_path / "built"))

    assert done.returncode == 0, done.stdout + done.stderr
    for name, (logical_id, _) in FUNCTIONS.items():
        built = {path.name for path in (tmp_path / "built" / logical_id).iterdir()}
        assert {f"{name}.py", "cloudwatch.py", "idempotency.py", "observability.py", "steps.py"} <= built


def test_every_event_is_handled_in_the_environment_that_sam_resolves(
    seen: Seen, local_catalog: SqlCatalog, tmp_path: Path
) -> None:
    stack, ids = seen.stack, {role: logical_id for role, (logical_id, _) in FUNCTIONS.items()}
    for role, function in stack.functions.items():
        credentials = {name: value for name, value in function.environment.items() if name.startswith("AWS_")}
        resolved = seen.environments[ids[role]]
        assert set(resolved) >= {name for name in function.environment if not name.startswith("AWS_")}
        function.environment.clear()
        function.environment.update({**resolved, **credentials})
    lake = LocalLake(stack, local_catalog, tmp_path)
    lake.table.fill(5)
    rows = lake.table.ids()

    answers = SentEvents(stack, stack.invoke).all("ns.t", "local")

    assert answers["compact"]["compact"] == "succeeded: compacted 5 files into 1 (across 1 bins)"
    assert answers["gather"]["small"]["count"] == 1
    assert (answers["report"]["status"], answers["report"]["left"]) == ("succeeded", 0)
    assert lake.table.ids() == rows


def test_sam_adds_no_role_and_no_policy(seen: Seen) -> None:
    """So the tests of rights cover all roles and policies."""
    stack = render(PARAMETERS)
    roles = set(stack.of_type("AWS::IAM::Role"))
    assert set(seen.roles) == roles
    decided = {"HasTableBuckets", "HasDataBuckets", "HasOtherTables", "ListsTableBuckets"}

    for logical_id in stack.of_type("AWS::Serverless::Function"):
        names = []
        for policy in seen.roles[f"{logical_id}Role"]:
            if isinstance(policy, str):
                names.append(policy.rsplit("/", 1)[1])
                continue
            condition, then, otherwise = policy.get("Fn::If", (None, policy, None))
            chosen = then if condition is None or condition in decided else otherwise
            if chosen != {"Ref": "AWS::NoValue"}:
                names.append(chosen["Ref"])
        expected = [grant.name for grant in stack.grants[logical_id] if grant.is_managed]
        assert names == expected, logical_id


# cfn-lint over the rendered template, for every set of resources that parameters can choose.


def test_every_rendering_is_valid_to_cfn_lint(tmp_path: Path) -> None:
    """Each possible set of policies together with all optional resources, and the defaults."""
    tables = [chosen for chosen in combinations(TABLES) if is_linted(chosen)]
    combined: list[Mapping[str, str]] = [{**chosen, **SINGLE, **VPC} for chosen in tables]
    combined.append({})
    paths = [rendered(tmp_path / f"{number}.json", parameters) for number, parameters in enumerate(combined)]

    command = [str(Path(sys.executable).parent / "cfn-lint"), *paths]
    done = subprocess.run(command, capture_output=True, text=True)

    assert len(paths) == 8 + 1
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def is_linted(chosen: Mapping[str, str]) -> bool:
    """Discovery and keys only add statements, so each is combined with one other parameter."""
    discovers = chosen["DiscoverTableBuckets"] == "true"
    beside = discovers == bool(chosen["TableBucketArns"]), bool(chosen["KmsKeyArns"]) == bool(chosen["DataBucketArns"])
    return all(beside) and not refusals({"Ownership": "auto", **chosen})


def rendered(path: Path, parameters: Mapping[str, str]) -> str:
    resources = {
        name: {"Type": item["Type"], "Properties": item["Properties"]}
        for name, item in render(parameters).resources.items()
    }
    document = {"AWSTemplateFormatVersion": "2010-09-09", "Transform": "AWS::Serverless-2016-10-31"}
    path.write_text(json.dumps({**document, "Resources": resources}))
    return str(path)
