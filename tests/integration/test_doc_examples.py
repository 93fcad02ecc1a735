"""The commands of the README and of docs/rhythms.md, and the examples of docs/run, work as written."""

from __future__ import annotations

import configparser
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.cli import main
from icekeeper.cycle.metrics_server import CycleHealth, served
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.pipeline.events import MachineInput, parse_event
from icekeeper.report.metrics import StateMetrics
from icekeeper.state.sqlite.store import SqliteStateStore
from local_stack.template import TEMPLATE, load_template
from support.command import CATALOG, Command

# The commands of the README, called in this process.

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCKS: list[str] = re.findall(r"^```sh test\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


ROWS = pa.table({"order_id": pa.array([1, 2, 3], pa.int64()), "region": ["us", "eu", None]})


@pytest.fixture
def lake(command: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlCatalog]:
    """A catalog ``lake`` with the table of the README, and no other catalog."""
    for key, value in command.properties.items():
        monkeypatch.delenv(f"PYICEBERG_CATALOG__{CATALOG}__{key.upper()}")
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{key.upper()}", value)
    monkeypatch.chdir(command.folder)  # commands write there
    with closing(SqlCatalog("lake", **command.properties)) as catalog:
        catalog.create_namespace("shop")
        table = catalog.create_table("shop.orders", ROWS.schema)
        for _ in range(12):
            table.append(ROWS)
        yield catalog


def test_every_catalog_is_configured_before_it_is_used() -> None:
    text = README.read_text()
    used = [*re.finditer(r"(?:--catalog|orders\.py) (\w+)", text)]
    assert {found[1] for found in used} == {"lake"}
    for found in used:
        before = text[: found.start()]
        assert f"PYICEBERG_CATALOG__{found[1].upper()}__" in before, found


def commands(block: str) -> Iterator[list[str]]:
    """The arguments of each command, as a shell would find them."""
    for line in block.replace("\\\n", " ").splitlines():
        name, *arguments = shlex.split(line, comments=True) or ["icekeeper"]
        assert name == "icekeeper"
        if arguments:
            yield arguments


@pytest.mark.usefixtures("lake")
def test_the_commands_of_the_readme_work_in_their_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(BLOCKS) == 12
    shown = ""
    for arguments in (arguments for block in BLOCKS for arguments in commands(block)):
        code = main(arguments)
        captured = capsys.readouterr()
        assert code == 0, f"{arguments}\n{captured.err}"
        shown += captured.out
    reported = README.read_text().partition("## Commands")[2].partition("| exit code")[0]
    excerpts = [line.strip() for line in reported.splitlines() if line.startswith("    ")]
    assert len(excerpts) == 10
    assert [line for line in excerpts if line not in shown.splitlines()] == [], shown


@pytest.mark.usefixtures("lake")
def test_the_examples_of_the_library_work(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = (README.parent / "docs" / "library.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "example.py").write_text("\n".join(blocks))
    runpy.run_path(str(tmp_path / "example.py"))
    shown = capsys.readouterr().out
    assert "shop.orders succeeded compact: compacted 12 files into 1" in shown
    assert "\rcompact: rewriting: 100%" in shown
    assert "PassOutcome(shop.orders succeeded: compact: compacted 1 file" in shown


# The commands, cron lines and unit of docs/rhythms.md, called in this process.

RHYTHMS = (README.parent / "docs" / "rhythms.md").read_text()
MERGE = ["run", "shop.*", "--catalog", "lake", "--operations", "compact", "--set", "strategy=binpack"]


def rhythm_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", RHYTHMS, re.MULTILINE | re.DOTALL)


def files_of(lake: SqlCatalog, name: str) -> dict[str, int]:
    """The data files of a table, each with its number of rows."""
    found = lake.load_table(name).inspect.files()
    return dict(zip(found["file_path"].to_pylist(), found["record_count"].to_pylist(), strict=True))


def append_to(lake: SqlCatalog, *names: str) -> None:
    for name in names:
        lake.create_namespace_if_not_exists(name.partition(".")[0])
        table = lake.create_table_if_not_exists(name, ROWS.schema)
        for _ in range(6):
            table.append(ROWS)


def passes(reported: str) -> list[list[str]]:
    """Table and status of each pass in the lines of a run, without its first line."""
    return sorted(line.split()[2:4] for line in reported.splitlines()[1:])


def called(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> str:
    assert main([*arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_the_rhythms_of_the_page_keep_each_others_work(lake: SqlCatalog, capsys: pytest.CaptureFixture[str]) -> None:
    """However it is started, the merging run keeps the files that the nightly run has z-ordered."""
    (policy,), merges = ([*commands(block)] for block in rhythm_blocks("sh test"))
    hourly, nightly = (shlex.split(line)[5:] for line in rhythm_blocks("cron")[0].splitlines())
    (unit,) = re.findall(r"^ExecStart=/opt/icekeeper/bin/icekeeper (.*)$", rhythm_blocks("ini")[0], re.MULTILINE)
    assert hourly == ["icekeeper", *MERGE[:2], "--once", *MERGE[2:]]
    assert shlex.split(unit) == [*MERGE[:4], "--interval", "1h", *MERGE[4:]]
    append_to(lake, "web.clicks")
    called(capsys, policy)
    assert passes(called(capsys, nightly[1:])) == [["shop.orders", "succeeded"], ["web.clicks", "succeeded"]]
    (ordered,) = files_of(lake, "shop.orders")
    assert len(files_of(lake, "web.clicks")) == 1
    append_to(lake, "shop.orders", "web.clicks")
    reported = called(capsys, merges[0]).splitlines()
    assert reported == ["shop.orders  succeeded  compacted 6 files into 1", "1 table, 1 succeeded, 0 did not"]
    assert sorted(files_of(lake, "shop.orders").values()) == [18, 36]
    assert called(capsys, merges[1]).startswith("shop.orders  succeeded  nothing to do\n")
    assert called(capsys, hourly[1:]).splitlines()[0].endswith("1 table scanned, 0 need maintenance")
    for arguments in (hourly[1:], [*shlex.split(unit.replace(" --interval 1h", "")), "--once"]):
        append_to(lake, "shop.orders")
        assert passes(called(capsys, arguments)) == [["shop.orders", "succeeded"]]
        assert ordered in files_of(lake, "shop.orders")
    assert len(files_of(lake, "web.clicks")) == 7  # no pattern matches it
    append_to(lake, "shop.orders")
    assert passes(called(capsys, nightly[1:])) == [["shop.orders", "succeeded"], ["web.clicks", "succeeded"]]
    assert (sum(files_of(lake, "shop.orders").values()), sum(files_of(lake, "web.clicks").values())) == (
        36 + 4 * 18,
        2 * 18,
    )
    called(capsys, hourly[1:])  # its first scan of the new head
    for arguments in (hourly[1:], nightly[1:], hourly[1:], nightly[1:]):  # neither makes the table due again
        assert passes(called(capsys, arguments)) == []


@pytest.mark.usefixtures("lake")
def test_a_pattern_must_match_names_and_a_bound_holds_for_a_rhythm(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve snapshots are kept, although the call keeps only one."""
    assert main(["run", "orders", "--catalog", "lake", "--once"]) == 2
    assert "'orders' can match no table: write a namespace, a dot and a name" in capsys.readouterr().err
    assert "no table matches 'shpo.*'" in called(capsys, ["run", "shpo.*", "--catalog", "lake", "--once"])
    monkeypatch.setenv("ICEKEEPER_BOUND_MAX_SNAPSHOTS_TO_KEEP", "12")
    monkeypatch.setenv("ICEKEEPER_SNAPSHOT_RETENTION_HOURS", "0")
    expires = ["run", "shop.*", "--catalog", "lake", "--operations", "expire_snapshots", "--once"]
    reported = called(capsys, [*expires, "--set", "max_snapshots_to_keep=1"])
    assert reported.splitlines()[0].endswith("1 table scanned, 0 need maintenance")
    monkeypatch.delenv("ICEKEEPER_BOUND_MAX_SNAPSHOTS_TO_KEEP")
    assert "expired 11 snapshots" in called(capsys, [*expires, "--set", "max_snapshots_to_keep=1"])


@pytest.mark.usefixtures("lake")
def test_the_list_shows_work_due_under_the_policy_and_not_under_a_rhythm(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the scan and the pass of a rhythm that merges, the record still has snapshots to expire."""
    monkeypatch.setenv("ICEKEEPER_SNAPSHOT_RETENTION_HOURS", "0")
    for due in (1, 0):
        reported = called(capsys, [*MERGE, "--once"])
        assert f"1 table scanned, {due} " in reported
        (table,) = json.loads(called(capsys, ["list", "--catalog", "lake", "--json"]))["tables"]
        assert table["state"] == "work"
        assert table["reasons"][-1].endswith("snapshots are older than snapshot_retention_hours 0")


# The second schedule of docs/rhythms.md, copied into the template.


def test_the_schedule_of_a_rhythm_fits_into_the_template() -> None:
    """It equals the template's schedule, which cfn-lint accepts, except for description, times and input."""
    (block,) = rhythm_blocks("yaml")
    begin, own, rest = TEMPLATE.read_text().partition("\n  ScheduleRole:\n")
    resources = load_template(f"{begin}\n{block}{own}{rest}")["Resources"]
    first, second = (resources[name]["Properties"] for name in ("Schedule", "MergeSchedule"))
    rhythm = parse_event(MachineInput, json.loads(second["Target"]["Input"]))
    assert (rhythm.patterns, rhythm.overrides) == (("shop.*",), {"operations": "compact", "strategy": "binpack"})
    assert {**second["Target"], "Input": "{}"} == first["Target"]
    differs = ("Description", "ScheduleExpression", "Target")
    assert {**second, **{key: first[key] for key in differs}} == first
    assert {**resources["MergeSchedule"], "Properties": first} == resources["Schedule"]
    assert re.fullmatch(r"(rate|cron)\([\w ?*/,-]+\)", second["ScheduleExpression"])
    assert 0 < len(second["Description"]) <= 512


# The examples for ``icekeeper run`` in ``docs/run/``: each is well-formed, and its command line works.

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "run"
UNIT = EXAMPLES / "icekeeper.service"


def unit() -> dict[str, str]:
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes="#")
    parser.optionxform = str  # type: ignore[assignment, method-assign] # configparser's documented way to keep case
    parser.read(UNIT)
    return dict(parser["Service"])


def manifests(name: str) -> dict[str, Any]:
    """The documents of a file by kind."""
    return {document["kind"]: document for document in yaml.safe_load_all((EXAMPLES / name).read_text())}


def pods() -> dict[str, Any]:
    """The specification of the pod that each manifest starts."""
    job = manifests("cronjob.yaml")["CronJob"]["spec"]["jobTemplate"]["spec"]
    deployment = manifests("deployment.yaml")["Deployment"]["spec"]
    return {"cronjob.yaml": job["template"]["spec"], "deployment.yaml": deployment["template"]["spec"]}


def dockerfile(word: str) -> list[str]:
    (found,) = re.findall(rf"^{word} (\[.*\])$", dockerfile_text(), re.MULTILINE)
    reported: list[str] = json.loads(found)
    return reported


def command_lines() -> dict[str, Sequence[str]]:
    of_pods = {name: pod["containers"][0]["args"] for name, pod in pods().items()}
    program, *of_unit = shlex.split(unit()["ExecStart"])
    assert Path(program).name == "icekeeper"
    assert dockerfile("ENTRYPOINT") == ["icekeeper"]
    return {"unit": of_unit, "container": dockerfile("CMD"), **of_pods}


def test_the_command_line_of_each_example_maintains_a_table(command: Command, lake: SqlCatalog) -> None:
    """The catalog has the name of the examples; an endless run gets ``--once``, and then serves no metrics."""
    table = lake.load_table("shop.orders")
    for number, (example, arguments) in enumerate(command_lines().items(), 1):
        work, *served = " ".join(arguments).split(" --http", 1)
        assert not served or ("--once" not in arguments and served[0].startswith(" 9464"))
        once = [] if "--once" in arguments else ["--once"]
        answer = command(*work.split(), *once, catalog=None)
        assert answer.code == 0, answer.err
        assert [line.split()[1:4] for line in answer.out.splitlines()[1:]] == [["lake", "shop.orders", "succeeded"]]
        assert len(table.refresh().inspect.files()) == number, example
        append_to(lake, "shop.orders")


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze here")
    here = tmp_path / UNIT.name
    script = str(Path(sys.executable).parent / "icekeeper")
    here.write_text(UNIT.read_text().replace("/opt/icekeeper/bin/icekeeper", script))
    done = subprocess.run([analyze, "verify", str(here)], capture_output=True, text=True, check=False, timeout=60)
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line]
    assert complaints == []


def test_the_unit_stops_the_process_and_not_its_workers() -> None:
    """With systemd's default, SIGTERM would kill the workers in the middle of an operation."""
    service = unit()
    assert service["KillMode"] == "mixed"
    assert service["RestartPreventExitStatus"] == "2"
    assert service["Environment"] == f"ICEKEEPER_STATE=/var/lib/{service['StateDirectory']}/state.db"


@pytest.mark.parametrize("name", ["cronjob.yaml", "deployment.yaml"])
def test_a_pod_keeps_its_state_on_a_volume_and_has_time_to_end(name: str) -> None:
    pod, claim = pods()[name], manifests(name)["PersistentVolumeClaim"]
    (container,) = pod["containers"]
    mount, *_ = container["volumeMounts"]
    volume, *_ = pod["volumes"]
    (state,) = [item["value"] for item in container["env"] if item["name"] == "ICEKEEPER_STATE"]
    assert state.startswith(f"{mount['mountPath']}/")
    assert (volume["name"], volume["persistentVolumeClaim"]["claimName"]) == (mount["name"], claim["metadata"]["name"])
    assert pod["securityContext"]["runAsUser"] == int(re.findall(r"--uid (\d+)", dockerfile_text())[0])
    assert f"-t {container['image']} dist" in dockerfile_text()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert container["image"] == f"icekeeper:{version}"
    assert (pod["terminationGracePeriodSeconds"], unit()["TimeoutStopSec"]) == (900, "15min")


def test_the_deployment_is_probed_and_scraped_as_the_alerts_want(tmp_path: Path) -> None:
    found = manifests("deployment.yaml")
    deployment, service, monitor = (found[kind] for kind in ("Deployment", "Service", "ServiceMonitor"))
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert container["args"][-4:] == ["--http", str(port["containerPort"]), "--http-address", "0.0.0.0"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": port["name"]}
    assert service["spec"]["ports"] == [{"name": port["name"], "port": port["containerPort"]}]
    assert monitor["spec"]["endpoints"] == [{"port": port["name"]}]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == service["metadata"]["labels"] == labels
    assert monitor["spec"]["selector"]["matchLabels"] == labels
    assert f'up{{job="{labels[monitor["spec"]["jobLabel"]]}"}}' in (ROOT / "docs/examples/alerts.yml").read_text()
    # The policy file of the ConfigMap is where the variable points, and valid.
    (name, text), *more = found["ConfigMap"]["data"].items()
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (path,) = [item["value"] for item in container["env"] if item["name"] == "ICEKEEPER_POLICY_FILE"]
    assert (path, more) == (f"{mounts['policy']}/{name}", [])
    (tmp_path / name).write_text(text)
    TablePolicies({"ICEKEEPER_POLICY_FILE": str(tmp_path / name)}).deployment({})


@pytest.mark.parametrize("name", ["cronjob.yaml", "deployment.yaml"])
def test_kubernetes_knows_each_field_of_the_manifests(name: str) -> None:
    """The schema of the ServiceMonitor is the operator's own."""
    program = Path(sys.executable).parent / "kubernetes-validate"
    call = [str(program), "--strict", str(EXAMPLES / name)]
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=60)
    unknown = [line for line in (done.stdout + done.stderr).splitlines() if " passed for resource " not in line]
    assert done.returncode == 0, unknown
    assert all("kind ServiceMonitor" in line for line in unknown), unknown


def test_the_health_check_of_the_image_asks_the_process(tmp_path: Path) -> None:
    (found,) = re.findall(r"^    CMD (\[.*\])$", dockerfile_text(), re.MULTILINE)
    program, flag, code = json.loads(found)
    assert (program, flag, dockerfile("CMD")[-1]) == ("python", "-c", "9464")
    now_s = [0.0]
    health = CycleHealth(60, lambda: now_s[0])
    with served("127.0.0.1", 0, StateMetrics(SqliteStateStore(tmp_path / "state.db")), health) as url:
        code = code.replace("http://127.0.0.1:9464", url)
        codes = []
        for at_s in (0, 10_000):
            now_s[0] = at_s
            codes.append(subprocess.run([sys.executable, flag, code], capture_output=True, timeout=30).returncode)
    assert codes == [0, 1]


def dockerfile_text() -> str:
    return (EXAMPLES / "Dockerfile").read_text()
