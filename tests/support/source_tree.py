"""The files of this repository as modules, and their imports, found without importing them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "layers" / "icekeeper" / "src" / "icekeeper"

SOURCES = sorted(PACKAGE.rglob("*.py"))
IMPORTS_OF_SPARK = sorted((ROOT / "glue_jobs").rglob("*.py"))
DEPLOYED = [*SOURCES, *sorted((ROOT / "functions").rglob("*.py")), *IMPORTS_OF_SPARK]
# Other packages: ``state_machine`` writes the definition, ``artifacts`` builds the deployment, ``local_stack`` runs it.
LOCAL_STACK = sorted((ROOT / "local_stack").rglob("*.py"))
_WRITERS = [*sorted((ROOT / "state_machine").rglob("*.py")), *sorted((ROOT / "artifacts").rglob("*.py"))]
BESIDE = [*_WRITERS, *LOCAL_STACK]


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT).as_posix()


def room(dotted: str) -> str:
    """``metadata`` of ``icekeeper.metadata.document``."""
    return dotted.split(".")[1]


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES}


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """The flat syntax tree of a file, parsed once for all tests."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def imported(path: Path) -> Iterator[tuple[str, str | None]]:
    """Every import, also nested imports: ``(module, imported name)``."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the floor"
            yield from ((node.module or "", alias.name) for alias in node.names)


def own_imports(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports."""
    for module, name in imported(path):
        if module.split(".")[0] == "icekeeper":
            yield f"{module}.{name}" if f"{module}.{name}" in MODULES else module


def is_within(module: str, room_or_module: str) -> bool:
    return module == room_or_module or module.startswith(f"{room_or_module}.")
