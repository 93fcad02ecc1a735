"""Build the Lambda layer: the package and what it needs, without what a function never uses (``make layer``).

Lambda takes 250 MB unzipped, layers included.  As installed this is 290 MB, most of it pyarrow; without symbols,
headers, tests, Flight and what only the command line needs it is about half (platform 11).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["LIMIT_BYTES", "build", "prune", "size_of"]

ROOT = Path(__file__).resolve().parents[1]
LIMIT_BYTES = 250 * 1024 * 1024
"""Lambda's limit for a function with all its layers, unzipped."""

# glibc 2.28, as pyarrow's wheels need; Lambda's Python 3.12 has 2.34, its 3.11 only 2.26.
PLATFORMS = {"x86_64": "x86_64-manylinux_2_28", "arm64": "aarch64-manylinux_2_28"}
PYTHON = "3.12"

UNUSED = (
    "bin",
    ".lock",
    "pyarrow/include",
    "pyarrow/includes",
    "pyarrow/src",
    "pyarrow/tests",
    "pyarrow/*.pxd",
    "pyarrow/*.pyx",
    "pyarrow/*flight*",
    "sqlalchemy/dialects/mssql",
    "sqlalchemy/dialects/oracle",
    "**/__pycache__",
    # Only the command line needs these.
    "pygments",
    "rich",
    "typer",
    "markdown_it",
    "mdurl",
    "shellingham",
)
CHECK = """
import importlib, sys
sys.path[:0] = sys.argv[1:3]
for role in sys.argv[3:]:
    importlib.import_module(role + ".handler")
import pyarrow.fs, pyarrow.parquet, pyiceberg.catalog.glue
"""


def build(folder: Path, architecture: str, strip: str) -> int:
    """Fill ``folder`` anew; its size in bytes.

    Raises:
        subprocess.CalledProcessError: a package could not be installed.
        SystemExit: the layer is too large.
    """
    shutil.rmtree(folder, ignore_errors=True)
    packages = folder / "python"
    # uv is where this interpreter is: make set it up there.
    uv = str(Path(sys.executable).parent / "uv")
    target = ["--python", sys.executable, "--target", str(packages)]
    platform = ["--python-version", PYTHON, "--python-platform", PLATFORMS[architecture]]
    wheels = ["--only-binary", ":all:", "--no-binary", "icekeeper", "--constraint", str(ROOT / "constraints.txt")]
    command = [uv, "pip", "install", "--quiet", *target, *platform, *wheels, f"{ROOT}[functions]"]
    subprocess.run(command, check=True)
    prune(packages)
    for library in packages.rglob("*.so*"):
        subprocess.run([strip, "--strip-unneeded", str(library)], check=True)
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


def _unused(packages: Path) -> Iterator[Path]:
    for pattern in UNUSED:
        yield from packages.glob(pattern)


def size_of(folder: Path) -> int:
    """Bytes of all files, as Lambda counts them."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _check_imports(packages: Path) -> str:
    """See that it loads, where that Python is at hand and the processor is this one."""
    interpreter = shutil.which(f"python{PYTHON}")
    # Some managers of Pythons put a command in the way of one that is not chosen.
    if interpreter is None or subprocess.run([interpreter, "-c", ""], capture_output=True).returncode != 0:
        return f"not loaded for a try: there is no python{PYTHON} here"
    functions = ROOT / "functions"
    roles = [handler.parent.name for handler in sorted(functions.glob("*/handler.py"))]
    subprocess.run([interpreter, "-I", "-S", "-B", "-c", CHECK, str(packages), str(functions), *roles], check=True)
    return f"loads all {len(roles)} functions"


def main() -> None:
    """``python layers/build_layer.py [--architecture arm64 --strip aarch64-linux-gnu-strip]``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architecture", choices=sorted(PLATFORMS), default="x86_64")
    parser.add_argument("--strip", default="strip", help="the strip of that processor's binutils")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "layer")
    given = parser.parse_args()
    size = build(given.output, given.architecture, given.strip)
    native = {"x86_64": "x86_64", "arm64": "aarch64"}[given.architecture] == _processor()
    tried = _check_imports(given.output / "python") if native else "not loaded for a try: it is for another processor"
    sys.stdout.write(f"{given.output}: {size >> 20} MB of {LIMIT_BYTES >> 20}, {given.architecture}; {tried}\n")


def _processor() -> str:
    return subprocess.run(["uname", "-m"], check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
