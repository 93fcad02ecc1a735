"""The imports of a command before its work, in a fresh interpreter; a time would depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.command import CATALOG, Command, one_sentence

CALLS = """
import json, sys
from icekeeper.cli import main
codes = [main(call) for call in json.loads(sys.argv[1])]
print("", json.dumps({"codes": codes, "modules": sorted(sys.modules)}), sep="\\n")
"""
# Typer needs pydantic for the arguments of a command.
LIBRARIES = (
    "boto3",
    "fastavro",
    "numpy",
    "pandas",
    "pyarrow",
    "pyiceberg",
    "pyspark",
    "sqlalchemy",
    "sqlglot",
    "strictyaml",
)
NOT_FOR_A_POLICY = (
    "boto3",
    "fastavro",
    "pandas",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyiceberg.io.pyarrow",
    "pyspark",
)
OTHER_ROOMS = (
    "administration",
    "commit",
    "deletion",
    "detection",
    "engines.spark",
    "maintenance",
    "operations",
    "pipeline",
    "verification",
)

WRONG_CALLS = (
    (("maintian", "ns.t"), "No such command 'maintian'."),
    (("pin", "add", "ns.t", "--catalog", "C", "--snapshot", "current"), "Missing option '--ttl'"),
    (("maintain", "ns.t", "--catalog", "C", "--engine", "duckdb"), "Invalid value for '--engine'"),
)


def interpreter(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)


def called(*calls: Sequence[str]) -> tuple[dict[str, Any], str, str]:
    """Call the command in one fresh interpreter; return exit codes and modules, standard output, and errors."""
    done = interpreter(CALLS, json.dumps(calls))
    *out, reported = done.stdout.splitlines()
    return json.loads(reported), "\n".join(out), done.stderr


def within(modules: Sequence[str], packages: Sequence[str]) -> list[str]:
    return [name for name in modules if any(name == item or name.startswith(f"{item}.") for item in packages)]


@pytest.fixture
def pandas_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pandas whose import fails and is reported on standard error."""
    package = tmp_path / "path" / "pandas"
    package.mkdir(parents=True)
    text = "import sys\nsys.stderr.write('pandas was imported\\n')\nraise ImportError('no pandas')\n"
    (package / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))


def test_help_and_wrong_calls_import_no_data_library(command: Command, pandas_that_fails: None) -> None:
    pages = [("--help",), ("maintain", "--help"), ("policy", "show", "--help"), ("request", "--help")]
    reported, out, err = called(*pages, *(call for call, _ in WRONG_CALLS))
    assert (reported["codes"], out.count("Usage: icekeeper")) == ([0] * len(pages) + [2] * len(WRONG_CALLS), len(pages))
    for line, (_, sentence) in zip(err.splitlines(), WRONG_CALLS, strict=True):
        assert one_sentence(line).startswith(sentence)
    assert within(reported["modules"], (*LIBRARIES, "icekeeper.runtime", "icekeeper.policy")) == []
    reported, _, _ = called(("--help",))
    assert within(reported["modules"], ("pydantic", "rich.console")) == []


def test_policy_show_imports_no_module_that_rewrites(command: Command, pandas_that_fails: None) -> None:
    command.table(appends=1)
    reported, out, err = called(("policy", "show", "ns.t", "--all", "--catalog", CATALOG))
    assert (reported["codes"], out.split(maxsplit=1)[0], err) == ([0], "key", "")
    assert within(reported["modules"], NOT_FOR_A_POLICY) == []
    assert within(reported["modules"], [f"icekeeper.{room}" for room in OTHER_ROOMS]) == []


def test_a_name_between_colons_is_not_printed_as_an_emoji(command: Command) -> None:
    answer = command("policy", "show", "ns.:cat:")
    assert one_sentence(answer.err) == f"there is no table ns.:cat: in catalog {CATALOG}"
