"""Fills the folder of the functions' layer: the package and what it needs, without what a function never uses.

Lambda takes 250 MB unzipped, layers included (platform: layer-size).
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from artifacts.installers import find_python, uv
from artifacts.locks import GLIBC, LAYER_LOCK, LAYER_PYTHON
from artifacts.pins import ROOT

LIMIT_BYTES = 250 * 1024 * 1024
"""Lambda's limit for a function with all its layers, unzipped."""

# Lambda's Python 3.12 has glibc 2.34, its 3.11 only 2.26.
PLATFORMS = {"x86_64": f"x86_64-manylinux_2_{GLIBC}", "arm64": f"aarch64-manylinux_2_{GLIBC}"}

UNUSED = (
    "bin",
    ".lock",
    "pyarrow/include",
    "pyarrow/includes",
    "pyarrow/src",
    "pyarrow/tests",
    "pyarrow/*.pxd",
    "pyarrow/*.pyx",
    "pyarrow/*.pxi",
    "pyarrow/*flight*",
    # Copies of a library under names that nothing loads; PyArrow loads libarrow_python.so.2600.
    "pyarrow/libarrow_python.so",
    "pyarrow/*.so.*.*.*",
    # Other stores than those of AWS.
    "pyarrow/_azurefs*",
    "pyarrow/_gcsfs*",
    "pyarrow/_hdfs*",
    # Only for Pythons other than CPython.
    "zstandard/_cffi.*",
    # Catalogs that functions cannot open: SQL other than SQLite, whose drivers the layer lacks, and Hive.
    "sqlalchemy",
    "hive_metastore",
    "fb303",
    # Compiled by this Python; a function compiles at each cold start instead (platform: function-import-time).
    "**/__pycache__",
    # They say where and with what it was installed, so that no two builds were alike.
    "*.dist-info/RECORD",
    "*.dist-info/direct_url.json",
    "*.dist-info/uv_cache.json",
    # Only the command line needs these.
    "pygments",
    "rich",
    "typer",
    "markdown_it",
    "mdurl",
    "shellingham",
)
SERVICES = frozenset({"dynamodb", "glue", "s3", "s3tables", "secretsmanager", "stepfunctions", "sts"})
"""The services of AWS that functions call; boto3's descriptions of all others are left out."""
_CHECK = """
import importlib, sys
sys.path[:0] = sys.argv[1:3]
for role in sys.argv[3:]:
    importlib.import_module(role)
import pyarrow.fs, pyarrow.parquet, pyiceberg.catalog.glue
"""


def build(wheel: Path, folder: Path, architecture: str) -> int:
    """Fill ``folder`` anew; its size in bytes.

    Raises:
        subprocess.CalledProcessError: a package could not be installed, or does not match the lock file
            (rule: deploy-pinned-packages).
        SystemExit: the layer is too large.
    """
    shutil.rmtree(folder, ignore_errors=True)
    packages = folder / "python"
    # Copies, not links into uv's cache, whose files stay as they are.
    target = ["--python", sys.executable, "--target", str(packages), "--link-mode", "copy"]
    built_for = ["--python-version", LAYER_PYTHON, "--python-platform", PLATFORMS[architecture]]
    locked = ["--only-binary", ":all:", "--require-hashes", "--requirements", str(LAYER_LOCK)]
    uv("pip", "install", "--quiet", *target, *built_for, *locked)
    # By its file: an index may have another package of the name.
    uv("pip", "install", "--quiet", *target, *built_for, "--no-deps", "--no-index", str(wheel))
    prune(packages)
    open_to_all(folder)
    size = size_of(folder)
    if size > LIMIT_BYTES:
        raise SystemExit(f"the layer has {size >> 20} MB; Lambda takes {LIMIT_BYTES >> 20}")
    return size


def prune(packages: Path) -> None:
    """Delete what a function never uses."""
    for path in list(_unused(packages)):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def remove_bytecode(folder: Path) -> None:
    """Delete what Python compiled below a folder that SAM packs whole: all functions would be deployed anew for it."""
    for path in list(folder.rglob("__pycache__")):
        shutil.rmtree(path, ignore_errors=True)  # several test processes do this at once


def open_to_all(folder: Path) -> None:
    """Let everybody read it, whatever this user's umask is: SAM packs the modes, and Lambda reads as another user."""
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _unused(packages: Path) -> Iterator[Path]:
    for pattern in UNUSED:
        yield from packages.glob(pattern)
    described = (packages / "botocore" / "data").glob("*")
    yield from (path for path in described if path.is_dir() and path.name not in SERVICES)


def size_of(folder: Path) -> int:
    """Bytes of all files, as Lambda counts them."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def load_for_a_try(folder: Path, architecture: str) -> str:
    """Load every function from the layer alone, if its Python is available and it was built for this processor.

    Returns the result as text for people.

    Raises:
        subprocess.CalledProcessError: one does not load.
    """
    if platform.system() != "Linux" or _native() != architecture:
        return "not loaded for a try: it is for another machine"
    interpreter = find_python(LAYER_PYTHON)
    if interpreter is None:
        return f"not loaded for a try: there is no python{LAYER_PYTHON} here"
    functions = ROOT / "functions"
    roles = [path.stem for path in sorted(functions.glob("*.py"))]
    command = [interpreter, "-I", "-S", "-B", "-c", _CHECK, str(folder / "python"), str(functions), *roles]
    subprocess.run(command, check=True)
    return "loads all functions"


def _native() -> str:
    return {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
