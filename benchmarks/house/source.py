"""The modules of the package: their syntax trees, which module imports which, and which names mean which function."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """The syntax tree, flat."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """The functions that stand directly in the module."""
        return {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    @cached_property
    def imports(self) -> tuple[tuple[str, str], ...]:
        """Each imported name with what it stands for, dotted; imports inside functions count, too."""
        return tuple(
            (
                alias.asname or alias.name,
                f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name,
            )
            for node in self.nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        )

    @cached_property
    def bindings(self) -> dict[str, str]:
        """What an imported name stands for in this module."""
        return dict(self.imports)


def read_modules(source: Path) -> dict[str, Module]:
    """All modules below a source folder, by their dotted names."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path, path.read_text())
    return found


def imported_modules(module: Module, modules: Mapping[str, Module]) -> set[str]:
    """The modules of the package that a module imports anywhere, also for type checking only; not itself."""
    found = set()
    for _, target in module.imports:
        if target in modules:
            found.add(target)
        elif target.rpartition(".")[0] in modules:
            found.add(target.rpartition(".")[0])
    return found - {module.name}


def functions_used_once(modules: Mapping[str, Module]) -> set[str]:
    """Functions of modules that the package calls or names in exactly one place outside their own body.

    Imports and ``__all__`` are no uses.  Methods are left out: a name behind a dot does not say whose method it is.
    """
    uses = Counter(used for module in modules.values() for used in _used_functions(module, modules))
    return {name for name, count in uses.items() if count == 1}


def _used_functions(module: Module, modules: Mapping[str, Module]) -> Iterator[str]:
    """The full name of a function for each place of a module that names it."""
    for node in module.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            name = f"{module.name}.{node.id}" if node.id in module.functions else module.bindings.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = module.bindings.get(node.value.id)
            name = None if owner is None else f"{owner}.{node.attr}"
        else:
            continue
        found = None if name is None else _defined(name, modules)
        if found is not None and not _is_within(node, module, found):
            yield found


def _defined(name: str, modules: Mapping[str, Module]) -> str | None:
    """Where the function of a dotted name is defined, through the packages that pass it on; ``None``: no function."""
    seen: set[str] = set()
    while name not in seen and name not in modules:
        seen.add(name)
        owner, _, last = name.rpartition(".")
        if owner not in modules:
            return None
        if last in modules[owner].functions:
            return name
        name = modules[owner].bindings.get(last, name)
    return None


def _is_within(node: ast.expr, module: Module, function: str) -> bool:
    """Whether a node stands inside the body of this function: a function that calls itself is not used by that."""
    owner, _, name = function.rpartition(".")
    if owner != module.name:
        return False
    definition = module.functions[name]
    return definition.lineno <= node.lineno <= (definition.end_lineno or 0)
