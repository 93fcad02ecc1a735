"""Run by SAM CLI's own Python: which versions of functions SAM would publish, as one JSON document on standard output.

Every function gets ``AutoPublishAlias`` and ``AutoPublishAliasAllProperties``.  For each set of parameters there is a
list of the versions' logical ids: CloudFormation publishes a version where its id is new.

Usage: ``python versions_by_sam.py TEMPLATE PARAMETERS_JSON...``.
"""

from __future__ import annotations

import json
import os
import sys
from unittest.mock import Mock

from samcli.yamlhelper import yaml_parse
from samtranslator.translator.transform import transform

_ELSEWHERE = {"AWS::Serverless::LayerVersion": "ContentUri", "AWS::Serverless::StateMachine": "DefinitionUri"}


def versions(template: str, parameters: dict[str, str]) -> list[str]:
    """The logical ids."""
    with open(template) as file:
        document = yaml_parse(file.read())
    document["Globals"]["Function"] |= {
        "CodeUri": "s3://bucket/key",
        "AutoPublishAlias": "live",
        "AutoPublishAliasAllProperties": True,
    }
    for resource in document["Resources"].values():
        if name := _ELSEWHERE.get(resource["Type"]):
            resource["Properties"][name] = "s3://bucket/key"
    known = Mock()
    known.load.return_value = {}
    resources = transform(document, parameters, known)["Resources"]
    return sorted(name for name, one in resources.items() if one["Type"] == "AWS::Lambda::Version")


def main() -> None:
    """Print them."""
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    found = [versions(sys.argv[1], json.loads(given)) for given in sys.argv[2:]]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
