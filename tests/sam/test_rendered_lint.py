"""cfn-lint over what CloudFormation would make of template.yaml, for every set of resources that can be chosen."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.stack_template import SINGLE, TABLES, VPC, combinations, refusals, render


def test_every_rendering_is_valid_to_cfn_lint(tmp_path: Path) -> None:
    """Each set of policies that there can be, beside all that is optional, and nothing of either."""
    tables = [chosen for chosen in combinations(TABLES) if is_looked_at(chosen)]
    wanted: list[Mapping[str, str]] = [{**chosen, **SINGLE, **VPC} for chosen in tables]
    wanted.append({})
    paths = [rendered(tmp_path / f"{number}.json", parameters) for number, parameters in enumerate(wanted)]

    command = [str(Path(sys.executable).parent / "cfn-lint"), *paths]
    told = subprocess.run(command, capture_output=True, text=True)

    assert len(paths) == 8 + 1
    assert (told.returncode, told.stdout) == (0, ""), told.stderr


def is_looked_at(chosen: Mapping[str, str]) -> bool:
    """Discovery and keys only add statements, so each is there beside one of the others."""
    discovers = chosen["DiscoverTableBuckets"] == "true"
    beside = discovers == bool(chosen["TableBucketArns"]), bool(chosen["KmsKeyArns"]) == bool(chosen["DataBucketArns"])
    return all(beside) and not refusals(chosen)


def rendered(path: Path, parameters: Mapping[str, str]) -> str:
    resources = {
        name: {"Type": one["Type"], "Properties": one["Properties"]}
        for name, one in render(parameters).resources.items()
    }
    document = {"AWSTemplateFormatVersion": "2010-09-09", "Transform": "AWS::Serverless-2016-10-31"}
    path.write_text(json.dumps({**document, "Resources": resources}))
    return str(path)
