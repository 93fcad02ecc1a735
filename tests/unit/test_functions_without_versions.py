"""A run's next steps are the newest functions, as "Upgrading" in docs/deployment.md says: nothing names a version."""

from __future__ import annotations

from support.stack_template import DOCUMENT, MACHINE, RESOURCES, of_type

FUNCTIONS = of_type("AWS::Serverless::Function")


def test_the_stack_publishes_no_version_of_a_function() -> None:
    everywhere = DOCUMENT["Globals"]["Function"]
    assert [name for name, function in FUNCTIONS.items() if "AutoPublishAlias" in {*function, *everywhere}] == []
    kinds = {str(found["Type"]) for found in RESOURCES.values()}
    assert kinds & {"AWS::Lambda::Version", "AWS::Lambda::Alias"} == set()


def test_the_machine_calls_every_function_by_its_arn_without_a_version() -> None:
    called = {name: value for name, value in MACHINE["DefinitionSubstitutions"].items() if name.endswith("Function")}
    assert called == {name: {"Fn::GetAtt": [name, "Arn"]} for name in FUNCTIONS}
