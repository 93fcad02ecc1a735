"""Python environments like those of AWS, and a table bucket for a run in them."""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from artifacts.installers import uv
from artifacts.pins import GLUE_PACKAGES, ROOT, normalized
from local_stack.stack import LocalStack
from support.readers import CanonicalRows, canonical, duckdb_rows

# Environments like those of AWS with only the deployment's packages: Glue's, with Glue's own packages, and Lambda's.


def empty_python(folder: Path, interpreter: str) -> Path:
    """Make an empty virtual environment and return its interpreter."""
    uv("venv", "--quiet", "--python", interpreter, str(folder))
    return folder / "bin" / "python"


def glue_python(folder: Path, interpreter: str) -> Path:
    """Make a virtual environment with the packages of AWS Glue, including pip, and return its interpreter."""
    python = empty_python(folder, interpreter)
    uv("pip", "install", "--quiet", "--python", str(python), "--requirement", str(GLUE_PACKAGES))
    return python


def install_as_glue_does(python: Path, packed: Path, *options: str) -> str:
    """Unpack a zip of wheels, install from it with the environment's pip and no index, and return pip's output.

    Raises:
        AssertionError: pip failed.
    """
    unpacked = python.parent.parent / "zip-of-wheels"
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(unpacked)
    wheels = unpacked / "wheels"
    where = ["--no-index", "--find-links", str(wheels), "--requirement", str(wheels / "requirements.txt")]
    return _out(str(python), "-m", "pip", "install", "--no-input", *where, *options)


def installed(python: Path) -> dict[str, str]:
    """Versions of all packages that an interpreter finds, by normalized name."""
    listed = json.loads(uv("pip", "list", "--quiet", "--format", "json", "--python", str(python)))
    return {normalized(package["name"]): package["version"] for package in listed}


class LambdaPython:
    """A process of Lambda's Python with the functions, the layer, and the runtime's boto3."""

    BOTO3 = "1.40.4"
    """Another version than the layer's, as in the runtime; AWS changes it without notice."""

    def __init__(self, interpreter: str, layer: Path, runtime: Path) -> None:
        self._interpreter = interpreter
        target = ["--python", interpreter, "--target", str(runtime)]
        uv("pip", "install", "--quiet", *target, f"boto3=={self.BOTO3}")
        self.layer, self.runtime = layer / "python", runtime

    def call(self, role: str, event: Any, environment: Mapping[str, str]) -> Any:
        """Call a function in a new process.

        Returns its ``result``, the ``files`` of all modules, the standard
        ``library``, and the version of ``boto3``.

        Raises:
            AssertionError: the process failed.
        """
        # The order in AWS Lambda developer guide, "Search paths": the function's code, layers, the runtime.
        paths = [str(ROOT / "functions"), str(self.layer), str(self.runtime)]
        script = [self._interpreter, "-I", "-S", "-B", "-c", _CALL]
        return json.loads(_out(*script, role, json.dumps(event), *paths, environment=environment).splitlines()[-1])


_CALL = """
import importlib, json, os, sys, types
role, event = sys.argv[1], json.loads(sys.argv[2])
sys.path[:0] = sys.argv[3:]
context = types.SimpleNamespace(
    function_name=role, memory_limit_in_mb=1024, aws_request_id="1", invoked_function_arn="arn:aws:lambda:" + role,
    get_remaining_time_in_millis=lambda: 600_000,
)
result = importlib.import_module(role).handle(event, context)
files = sorted({getattr(module, "__file__", None) or "" for module in list(sys.modules.values())})
print()
facts = {"files": files, "library": os.path.dirname(os.__file__), "boto3": sys.modules["boto3"].__version__}
print(json.dumps({"result": result, **facts}))
"""


def _out(*command: str, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


# A table in a real table bucket under a local stack, read by DuckDB after a run.

FILES = 5


class BucketLake:
    """The catalog ``lake`` of a stack, and its only table ``ns.t`` of small files."""

    def __init__(self, stack: LocalStack, properties: Mapping[str, str]) -> None:
        self._properties = properties
        catalog = load_catalog("lake", **properties)
        catalog.create_namespace("ns")
        self._table = catalog.create_table("ns.t", pa.schema([("id", pa.int64()), ("part", pa.string())]))
        for number in range(FILES):
            self._table.append(pa.table({"id": [number, -number], "part": ["p", str(number)]}))
        lines = "".join(f"    {key}: '{value}'\n" for key, value in properties.items())
        stack.put_control("config/pyiceberg.yaml", f"catalog:\n  lake:\n{lines}")
        stack.put_control("config/policy.yaml", "rules:\n- settings:\n    min_input_files: 2\n")

    def rows(self) -> CanonicalRows:
        """The current rows."""
        return canonical(duckdb_rows(self._table.refresh().metadata_location, s3=self._properties))

    def data_files(self) -> int:
        """The current number of data files."""
        return len(self._table.refresh().inspect.data_files())
