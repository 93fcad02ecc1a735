"""Each operation in the table of facts has its handler, job, states and exactly the rights that it needs."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from icekeeper.maintenance.pass_steps import OPERATIONS
from icekeeper.operation_facts import (
    ALL_OPERATIONS,
    CLEAN_STAGED,
    FACTS,
    FUNCTIONS,
    STEP_FACTS,
    STEPS,
    BuiltIn,
    Function,
    Operation,
    Stage,
    StepFacts,
)
from icekeeper.pipeline.deployment import CONTROL_BUCKET, PipelineSettings
from icekeeper.policy import POLICY_KEYS
from local_stack.template import load_template
from support.stack_template import role_of
from support.state_machine import LEVELS, MACHINE, tasks

ROOT = Path(__file__).resolve().parents[2]
RESOURCES: Mapping[str, Mapping[str, Any]] = load_template()["Resources"]
READ, COMMIT, DELETE = "ReadTablesPolicy", "CommitTablesPolicy", "DeleteFilesPolicy"
Check = Callable[[Sequence[StepFacts]], Iterable[str]]


def camel(name: str) -> str:
    return "".join(part.title() for part in name.split("_"))


def operations(steps: Sequence[StepFacts]) -> list[StepFacts]:
    return [step for step in steps if step.name != CLEAN_STAGED]


def jobs(steps: Sequence[StepFacts]) -> set[str]:
    return {step.job.script for step in steps if step.job is not None}


def page(path: str) -> str:
    return (ROOT / path).read_text()


def rights(steps: Iterable[StepFacts]) -> set[str]:
    """The table policies that a function or job with these steps needs."""
    done = list(steps)
    commits = {COMMIT} if any(step.commits for step in done) else set()
    deletes = {DELETE} if any(step.deletes_files for step in done) else set()
    return {READ, *commits, *deletes}


def policies_in(value: Any) -> set[str]:
    """The table policies that the policy list of a function or role names."""
    return set(re.findall(rf"\b({READ}|{COMMIT}|{DELETE})\b", repr(value)))


def own_name(path: Path, function: str) -> str | None:
    """The literal that a script passes to ``function`` as its last argument."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    for call in calls:
        if ast.unparse(call.func) == function and isinstance(call.args[-1], ast.Constant):
            return str(call.args[-1].value)
    return None


def own_steps(function: Function) -> list[str]:
    """The steps that a function does, as literals of its module: they cannot come from an event."""
    (node,) = (
        node
        for node in ast.walk(ast.parse((ROOT / "functions" / f"{function}.py").read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "function"
    )
    (table,) = node.args
    assert isinstance(table, ast.Dict)
    return [ast.literal_eval(key) for key in table.keys if key is not None]


def its_switches_are_keys_of_the_policy(steps: Sequence[StepFacts]) -> Iterable[str]:
    return [f"{step.name}: no key {key}" for step in steps for key in step.switches if key not in POLICY_KEYS]


def its_work_is_registered(steps: Sequence[StepFacts]) -> Iterable[str]:
    return [f"{step.name}: not in OPERATIONS" for step in operations(steps) if step.name not in OPERATIONS]


def its_function_has_exactly_the_rights_that_it_needs(steps: Sequence[StepFacts]) -> Iterable[str]:
    for step in steps:
        found = RESOURCES[f"{camel(step.function)}Function"]
        if policies_in(role_of(found["Properties"])) != rights([step]):
            yield f"{step.name}: template.yaml, {camel(step.function)}Function: {sorted(rights([step]))}"


def its_job_has_a_script_that_names_it(steps: Sequence[StepFacts]) -> Iterable[str]:
    for script in jobs(steps):
        path = ROOT / "glue_jobs" / f"{script}.py"
        if not path.exists() or own_name(path, "run_job") != script:
            yield f"glue_jobs/{script}.py"


def its_job_has_exactly_the_rights_that_it_needs(steps: Sequence[StepFacts]) -> Iterable[str]:
    for script in jobs(steps):
        needed = rights(step for step in steps if step.job is not None and step.job.script == script)
        job = RESOURCES.get(f"{camel(script)}Job")
        role = {} if job is None else role_of(job["Properties"])
        if policies_in(role.get("ManagedPolicyArns")) != needed:
            yield f"{script}: template.yaml, {camel(script)}Job: {sorted(needed)}"


def its_states_are_in_the_definition(steps: Sequence[StepFacts]) -> Iterable[str]:
    """A task calls its function in the map of each of its stages; a task behind the stage's choice starts its job."""
    maps = {Stage.SMALL: "CompactSmallTables", Stage.SWEEP: "ExpireAndSweep", Stage.AFTER_JOBS: "SweepAfterJobs"}
    for step in steps:
        for stage in filter(None, (step.stage, step.later_stage)):
            if f"'step': '{step.call}'" not in str(LEVELS[maps.get(stage, MACHINE.name)].definition):
                yield f"{step.name}: no task in {stage}: state_machine/maps.py"
        if step.job is not None:
            started = [
                state for _, state in tasks("glue") if state["Parameters"]["JobName"] == camel(step.job.script) + "Job"
            ]
            if [f"$.stages.{step.job.stage.value}.key"] != [
                state["Parameters"]["Arguments"]["--work-key.$"] for state in started
            ]:
                yield f"{step.name}: no task starts {step.job.script}: state_machine/line.py"


def its_steps_are_selected_by_the_choices(steps: Sequence[StepFacts]) -> Iterable[str]:
    """The choices in the map of a stage select each step; expiry comes first and needs no choice."""
    selected = {
        case.get("And", [case])[0]["Variable"].removeprefix("$.steps.")
        for level in LEVELS.values()
        for state in level.states.values()
        for case in state.get("Choices", ())
    }
    for step in operations(steps):
        if step.name != Operation.EXPIRE_SNAPSHOTS and step.name not in selected:
            yield f"{step.name}: make definition"


def its_limit_has_a_value(steps: Sequence[StepFacts]) -> Iterable[str]:
    limits = {step.job.limit for step in steps if step.job is not None}
    return sorted(limits - PipelineSettings.read({CONTROL_BUCKET: "b"}).limits.keys())


def its_page_is_listed_in_canonical_order(steps: Sequence[StepFacts]) -> Iterable[str]:
    order = page("docs/operations/index.md").partition("always in this order")[2].partition("\n\n")[0]
    listed = re.findall(r"\[`(\w+)`\]", order)
    names = [step.name for step in operations(steps)]
    yield from (f"{name}: no page" for name in names if not (ROOT / "docs" / "operations" / f"{name}.md").exists())
    if listed != names:
        yield f"the index lists the order {listed}"


def its_line_is_in_the_readme(steps: Sequence[StepFacts]) -> Iterable[str]:
    listed = re.findall(r"^\| `(\w+)` \| (.*) \|", page("README.md").partition("\n## Operations\n")[2], re.MULTILINE)
    wanted = [(step.name, step.is_opt_in) for step in operations(steps)]
    found = [(name, "on request only" in line) for name, line in listed]
    return [f"{name}: README.md, Operations" for name, opt_in in wanted if (name, opt_in) not in found]


def its_rights_are_on_the_deployment_page(steps: Sequence[StepFacts]) -> Iterable[str]:
    table = page("docs/deployment.md").partition("\n## Who may do what\n")[2].partition("\n\nDeleting")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if "|" in line]
    for doer in {step.function.value for step in steps} | jobs(steps):
        done = [step for step in steps if doer in (step.function, step.job and step.job.script)]
        needed = ["yes" if policy in rights(done) else "" for policy in (READ, COMMIT, DELETE)]
        found = [(its, cells) for who, its, *cells in rows if re.search(rf"\b{doer}\b", who)]
        if [cells for _, cells in found] != [needed]:
            yield f"{doer}: docs/deployment.md, Who may do what: {needed}"
        elif doer in set(Function):
            named = set(re.findall(r"\w+", found[0][0]))
            yield from (f"{doer}: no {step.name} on the page" for step in done if step.name not in named)


CHECKS: tuple[Check, ...] = (
    its_switches_are_keys_of_the_policy,
    its_work_is_registered,
    its_function_has_exactly_the_rights_that_it_needs,
    its_job_has_a_script_that_names_it,
    its_job_has_exactly_the_rights_that_it_needs,
    its_states_are_in_the_definition,
    its_steps_are_selected_by_the_choices,
    its_limit_has_a_value,
    its_page_is_listed_in_canonical_order,
    its_line_is_in_the_readme,
    its_rights_are_on_the_deployment_page,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_operation_passes_the_check(check: Check) -> None:
    assert list(check(STEP_FACTS)) == []


def test_each_step_is_named_by_its_function_and_by_one_task_in_each_of_its_stages() -> None:
    expected = {(step, function.value) for step, function in FUNCTIONS.items()}
    assert {(step, function.value) for function in Function for step in own_steps(function)} == expected
    parameters = [state["Parameters"] for _, state in tasks("lambda")]
    called = [(found["Payload"]["step"], found["FunctionName"]) for found in parameters]
    again = {(step.call, step.function.value) for step in STEP_FACTS if step.later_stage is not None}
    again |= {("list_orphans", Function.READ.value)}
    assert sorted(called) == sorted((step, f"{camel(function)}Function") for step, function in [*expected, *again])
    assert [step for step in FUNCTIONS if not (ROOT / "events" / f"{step}.json").exists()] == []


def test_every_operation_has_its_facts_in_canonical_order() -> None:
    assert tuple(FACTS) == tuple(Operation)
    assert (*map(str, Operation), CLEAN_STAGED) == STEPS


def test_the_steps_that_delete_or_commit_are_exactly_these() -> None:
    """A mistake in the table of facts could grant the right to delete, and tests that read the table would pass."""
    assert {step.name for step in STEP_FACTS if step.deletes_files} == {
        "expire_snapshots",
        "remove_orphans",
        "clean_staged",
    }
    assert {step.name for step in STEP_FACTS if step.deletes_rows} == {"expire_partitions"}
    assert {step.name for step in STEP_FACTS if not step.commits} == {"remove_orphans", "clean_staged"}
    assert {name for name, facts in FACTS.items() if facts.is_destructive} == {
        Operation.EXPIRE_PARTITIONS,
        Operation.EXPIRE_SNAPSHOTS,
        Operation.REMOVE_ORPHANS,
    }


def test_operations_that_change_or_read_all_rows_run_on_request_only() -> None:
    assert tuple(Operation) != ALL_OPERATIONS
    assert set(Operation) - set(ALL_OPERATIONS) == {Operation.EXPIRE_PARTITIONS, Operation.COMPUTE_STATISTICS}


def test_the_page_lists_the_operations_that_a_table_bucket_replaces() -> None:
    text = page("docs/operations/index.md")
    listed = dict(re.findall(r"^\| `(iceberg\w+)` \| (.*) \|$", text, re.MULTILINE))
    assert {name: re.findall(r"`(\w+)`", cell) for name, cell in listed.items()} == {
        built_in.value: [facts.name for facts in FACTS.values() if facts.built_in is built_in] for built_in in BuiltIn
    }
    (ours,) = re.findall(r"^Icekeeper always runs (.*) itself\.", text, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", ours)) == {facts.name for facts in FACTS.values() if facts.built_in is None}
