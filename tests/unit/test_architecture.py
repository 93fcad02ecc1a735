"""The shape of the house: imports point downwards, foreign packages stay in their rooms, files stay small."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "layers" / "icekeeper" / "src" / "icekeeper"

# The ground floor first.  A room imports from floors below its own, never from its neighbours.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"masking"}),
    frozenset({"activity", "clock", "environment", "errors", "model", "operation_facts"}),
    frozenset({"metadata", "policy", "pyiceberg_private", "state", "storage"}),
    frozenset({"catalogs", "engines", "health", "report", "rows"}),
    frozenset({"commit", "table_policy"}),
    frozenset({"pass_context"}),
    frozenset({"deletion"}),
    frozenset({"operations"}),
    frozenset({"administration", "advice", "detection", "maintenance", "verification"}),
    frozenset({"runtime"}),
    frozenset({"demo", "pipeline"}),
    frozenset({"cli"}),
)
# The same inside of rooms, for their inner rooms and their own modules.  No operation knows another one.
INNER_FLOORS: dict[str, tuple[frozenset[str], ...]] = {
    "operations": (
        frozenset(
            {
                "compaction",
                "expiry",
                "manifests",
                "orphans",
                "partitions",
                "position_deletes",
                "staging",
                "statistics",
            }
        ),
    ),
    "operations.compaction": (
        frozenset({"readable", "recipe", "row_hash", "where"}),
        frozenset({"proof", "task"}),
        frozenset({"writing"}),
        frozenset({"output_partition"}),
        frozenset({"candidates"}),
        frozenset({"budget", "clustering"}),
        frozenset({"partition_rows", "plan"}),
        frozenset({"depth_metrics", "rewrite"}),
        frozenset({"commit_results"}),
        frozenset({"dispatch"}),
        frozenset({"compact"}),
    ),
    "state": (
        frozenset({"address", "claims", "identity", "leases"}),
        frozenset({"lake_stats", "pending_deletions", "quarantine", "requests", "staging"}),
        frozenset({"store"}),
        frozenset({"dynamodb", "sqlite", "table_memory"}),
        frozenset({"open"}),
    ),
}

# Foreign package → where it may be imported: a room, or a file below the package.
AT_HOME: dict[str, frozenset[str]] = {
    "pyspark": frozenset({"engines/spark.py"}),
    "py4j": frozenset({"engines/spark.py"}),
    "boto3": frozenset({"catalogs", "storage", "state", "demo/seaweedfs.py", "pyiceberg_private"}),
    "botocore": frozenset(
        {"catalogs", "storage", "state", "demo/seaweedfs.py", "pyiceberg_private", "pipeline/executions.py"}
    ),
    "sqlalchemy": frozenset({"catalogs", "pyiceberg_private"}),
    "strictyaml": frozenset({"policy", "pyiceberg_private"}),
    "requests": frozenset({"catalogs", "pyiceberg_private"}),
    "typer": frozenset({"cli"}),
    "rich": frozenset({"cli", "demo", "report/terminal.py"}),
    "duckdb": frozenset({"demo/duckdb_child.py"}),
    "aws_lambda_powertools": frozenset(),
}
# Room or module → what it must not import although floors would let it.
UNKNOWN_TO: dict[str, tuple[str, ...]] = {
    # Commits and metadata are about entries, not about rows.
    "icekeeper.commit": ("pyarrow", "icekeeper.storage"),
    "icekeeper.metadata": ("pyarrow", "pyiceberg"),
    # Engines run functions, and the work unit runs on machines that never heard of the catalog.
    "icekeeper.engines": ("pyiceberg", "pyarrow", "icekeeper.catalogs", "icekeeper.operations"),
    "icekeeper.operations.manifests.lanes": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
    "icekeeper.operations.compaction.task": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
    "icekeeper.rows.read": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
    "icekeeper.operations.compaction.writing.write": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
    "icekeeper.operations.compaction.rewrite": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
    "icekeeper.operations.compaction.clustering.work": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
    "icekeeper.operations.compaction.clustering.sample": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
    "icekeeper.operations.statistics.task": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
}
# Plans and rules: no input, no output, no clock, no chance.
PURE = (
    "icekeeper.advice.advise",
    "icekeeper.advice.layout",
    "icekeeper.advice.partitioning",
    "icekeeper.advice.shared_keys",
    "icekeeper.advice.sql",
    "icekeeper.advice.summarise",
    "icekeeper.advice.summary",
    "icekeeper.advice.upkeep",
    "icekeeper.catalogs.addresses",
    "icekeeper.catalogs.kind",
    "icekeeper.catalogs.table_bucket_properties",
    "icekeeper.catalogs.table_bucket_arn",
    "icekeeper.commit.attempt",
    "icekeeper.commit.history",
    "icekeeper.commit.row_ids",
    "icekeeper.operations.expiry.candidates",
    "icekeeper.operations.expiry.retention",
    "icekeeper.operations.expiry.ref_costs",
    "icekeeper.operations.expiry.unreferenced",
    "icekeeper.operations.expiry.unused_metadata",
    "icekeeper.operations.expiry.writer_chains",
    "icekeeper.operations.staging.plan",
    "icekeeper.operations.compaction.writing.planned_names",
    "icekeeper.operations.manifests.cuts",
    "icekeeper.operations.manifests.partition_ranges",
    "icekeeper.operations.manifests.plan",
    "icekeeper.deletion.neighbours",
    "icekeeper.deletion.other_heads",
    "icekeeper.deletion.owned_locations",
    "icekeeper.pass_context.allowed_locations",
    "icekeeper.operations.orphans.plan",
    "icekeeper.operations.orphans.candidates",
    "icekeeper.operations.orphans.table_locations",
    "icekeeper.deletion.prefix_mismatch",
    "icekeeper.operations.compaction.budget",
    "icekeeper.operations.compaction.candidates",
    "icekeeper.operations.compaction.depth_metrics",
    "icekeeper.operations.compaction.output_partition",
    "icekeeper.operations.compaction.clustering.depth",
    "icekeeper.operations.compaction.clustering.plan",
    "icekeeper.operations.compaction.clustering.recluster",
    "icekeeper.operations.compaction.clustering.runs",
    "icekeeper.operations.compaction.plan",
    "icekeeper.operations.compaction.recipe",
    "icekeeper.operations.partitions.partition_time",
    "icekeeper.operations.partitions.plan",
    "icekeeper.operations.position_deletes.plan",
    "icekeeper.operations.statistics.columns",
    "icekeeper.operations.statistics.partition_statistics",
    "icekeeper.operations.statistics.plan",
    "icekeeper.detection.assess",
    "icekeeper.detection.filters",
    "icekeeper.detection.layout_signals",
    "icekeeper.detection.signals",
    "icekeeper.detection.scan_order",
    "icekeeper.health.counters",
    "icekeeper.health.examine",
    "icekeeper.health.totals",
    "icekeeper.health.warnings",
    "icekeeper.health.words",
    "icekeeper.metadata.overlap_depth",
    "icekeeper.operation_facts",
    "icekeeper.policy",
    "icekeeper.state.leases",
    "icekeeper.verification.document_checks",
    "icekeeper.verification.lineage_checks",
    "icekeeper.verification.manifest_checks",
    "icekeeper.verification.statistics_checks",
)
SIDE_EFFECTS = ("os", "time", "random", "uuid", "secrets", "subprocess", "socket", "tempfile", "shutil", "pathlib")
MEANINGLESS = {"utils", "util", "helpers", "helper", "common", "manager", "misc", "process"}
LONGEST = 300

# What a test may take from PyIceberg is of no concern here; what the package takes from its inside is.
PYICEBERG_INSIDES = frozenset(
    {"pyiceberg.catalog.rest", "pyiceberg.catalog.rest.scan_planning", "pyiceberg.utils.config"}
)

SOURCES = sorted(PACKAGE.rglob("*.py"))
IMPORTS_OF_SPARK = sorted((ROOT / "glue_jobs").rglob("*.py"))
DEPLOYED = [*SOURCES, *sorted((ROOT / "functions").rglob("*.py")), *IMPORTS_OF_SPARK]
# What stands beside it: one writes the definition, the other runs the whole of it here.
LOCAL_STACK = sorted((ROOT / "local_stack").rglob("*.py"))
BESIDE = [*sorted((ROOT / "state_machine").rglob("*.py")), *LOCAL_STACK]


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
    """The syntax tree of a file, flat; parsed once for all tests."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def imported(path: Path) -> Iterator[tuple[str, str | None]]:
    """Every import, nested ones too: ``(module, name taken from it)``."""
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


def is_at_home(path: Path, homes: Collection[str]) -> bool:
    return room(module_name(path)) in homes or relative(path) in homes


def is_within(module: str, room_or_module: str) -> bool:
    return module == room_or_module or module.startswith(f"{room_or_module}.")


def forbidden_imports(importer: str, forbidden: Collection[str]) -> set[str]:
    """What a room or module imports of a list."""
    assert importer in MODULES
    return {
        f"{name} imports {target}"
        for name, path in MODULES.items()
        if is_within(name, importer)
        for target in [*own_imports(path), *(module for module, _ in imported(path))]
        if any(is_within(target, package) for package in forbidden)
    }


def public_names(tree: ast.Module) -> set[str]:
    """Functions, classes and constants that a module defines without a leading underscore."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def test_every_room_has_its_floor() -> None:
    rooms = {room(name) for name in MODULES if name != "icekeeper"}
    placed = [name for floor in FLOORS for name in floor]
    assert sorted(placed) == sorted(rooms)


def test_the_docs_describe_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    described = {
        named.strip("` /").removesuffix(".py")
        for line in text.splitlines()
        if line.startswith("| `")
        for named in line.split("|")[1].split(",")
    }
    assert {name for floor in FLOORS for name in floor} <= described


def test_imports_point_downwards() -> None:
    level = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    upwards = [
        f"{relative(path)} (floor {level[room(name)]}) imports {target} (floor {level[room(target)]})"
        for name, path in MODULES.items()
        if name != "icekeeper"
        for target in own_imports(path)
        if room(target) != room(name) and level[room(target)] >= level[room(name)]
    ]
    assert upwards == []


def children(house: str) -> dict[str, set[str]]:
    """Rooms and modules directly inside a room, and which of each other they import."""
    prefix = f"icekeeper.{house}."

    def child(module: str) -> str | None:
        return module.removeprefix(prefix).split(".")[0] if module.startswith(prefix) else None

    found: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        importer = child(name)
        if importer is not None:
            found.setdefault(importer, set()).update(
                target for target in map(child, own_imports(path)) if target not in (None, importer)
            )
    return found


def test_every_room_with_rooms_inside_has_floors_of_its_own() -> None:
    houses = {
        name.removeprefix("icekeeper.").rpartition(".")[0]
        for name, path in MODULES.items()
        if path.name == "__init__.py" and name.count(".") >= 2
    }
    assert houses == set(INNER_FLOORS)


@pytest.mark.parametrize("house", sorted(INNER_FLOORS))
def test_imports_inside_a_room_point_downwards(house: str) -> None:
    found = children(house)
    level = {name: number for number, floor in enumerate(INNER_FLOORS[house]) for name in floor}
    assert sorted(level) == sorted(found)
    assert [
        f"{importer} (floor {level[importer]}) imports {target} (floor {level[target]})"
        for importer, targets in found.items()
        for target in targets
        if level[target] >= level[importer]
    ] == []


def test_no_module_imports_itself_in_the_end() -> None:
    graph = {name: {target for target in own_imports(path) if target != name} for name, path in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


@pytest.mark.parametrize("package", sorted(AT_HOME))
def test_foreign_packages_stay_in_their_rooms(package: str) -> None:
    strangers = {
        relative(path)
        for path in SOURCES
        for module, _ in imported(path)
        if module.split(".")[0] == package and not is_at_home(path, AT_HOME[package])
    }
    assert strangers == set()


def imports_of(paths: Collection[Path], packages: Collection[str]) -> set[str]:
    """Which files import of these packages."""
    return {
        f"{relative(path)} imports {module}"
        for path in paths
        for module, _ in imported(path)
        if module.split(".")[0] in packages
    }


def test_what_is_deployed_knows_nothing_of_what_stands_beside_it() -> None:
    assert imports_of(DEPLOYED, {"benchmarks", "local_stack", "moto", "state_machine", "support"}) == set()


def test_the_local_stack_needs_no_tests() -> None:
    assert imports_of(LOCAL_STACK, {"hypothesis", "pytest", "support"}) == set()


@pytest.mark.parametrize("importer", sorted(UNKNOWN_TO))
def test_a_room_knows_nothing_of_what_is_not_its_business(importer: str) -> None:
    assert forbidden_imports(importer, UNKNOWN_TO[importer]) == set()


@pytest.mark.parametrize("importer", PURE)
def test_rules_are_pure(importer: str) -> None:
    assert forbidden_imports(importer, SIDE_EFFECTS) == set()


def test_classes_of_pyiceberg_are_extended_in_one_room() -> None:
    """A subclass reaches into its base by inheritance, which no underscore shows."""
    extended = set()
    for path in SOURCES:
        theirs = {name for module, name in imported(path) if is_within(module, "pyiceberg")}
        for node in nodes(path):
            if isinstance(node, ast.ClassDef) and theirs & {ast.unparse(base) for base in node.bases}:
                extended.add(f"{relative(path)}: {node.name}")
    assert extended == {"pyiceberg_private/rest.py: BoundedRestCatalog"}


def test_what_pyiceberg_keeps_private_is_used_in_one_room() -> None:
    """Underscored modules and names, and modules whose inside is no public interface."""
    strangers = set()
    for path in SOURCES:
        if relative(path).startswith("pyiceberg_private/"):
            continue
        for module, name in imported(path):
            parts = [*module.split("."), name or ""]
            if parts[0] == "pyiceberg" and (module in PYICEBERG_INSIDES or any(p.startswith("_") for p in parts)):
                strangers.add(f"{relative(path)}: {module}.{name}")
    assert strangers == set()


def test_nobody_reaches_into_another_object() -> None:
    """``thing._name`` is for a class's own methods; across modules it would escape every other check."""
    reaches = []
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        own = {
            name
            for node in ast.walk(tree)
            for name in (
                [node.name]
                if isinstance(node, ast.FunctionDef | ast.ClassDef)
                else [node.target.id]
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
                else [node.attr]
                if isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id in ("self", "cls")
                else []
            )
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or node.attr in own:
                continue
            if relative(path).startswith("pyiceberg_private/"):
                continue
            if node.attr.startswith("_") and not node.attr.startswith("__"):
                reaches.append(f"{relative(path)}:{node.lineno} {ast.unparse(node)}")
    # os._exit is the documented way for a forked child to end without its parent's clean-up.
    assert [reach for reach in reaches if not reach.endswith("os._exit")] == []


@pytest.mark.parametrize("path", [*SOURCES, *BESIDE], ids=relative)
def test_a_file_has_one_job(path: Path) -> None:
    text = path.read_text()
    lines = len(text.splitlines())
    assert lines <= LONGEST, f"{relative(path)} has {lines} lines: look for the second job"
    assert path.stem not in MEANINGLESS
    assert path.parent.name not in MEANINGLESS


@pytest.mark.parametrize("path", [path for path in [*SOURCES, *BESIDE] if path.read_text().strip()], ids=relative)
def test_a_module_says_what_it_is_for_and_what_it_offers(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "no docstring"
    offered = next(
        (
            {ast.literal_eval(element) for element in node.value.elts}
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "__all__"
            and isinstance(node.value, ast.List | ast.Tuple)
        ),
        None,
    )
    defined = public_names(tree) - {"log"}
    if defined:
        assert offered, f"defines {sorted(defined)} but no __all__"
    if offered is not None and path.name != "__init__.py":
        assert offered <= public_names(tree), "offers what it does not define"


def test_jobs_are_thin() -> None:
    """Glue scripts may import pyspark; they hold no logic of their own."""
    assert [path.name for path in IMPORTS_OF_SPARK if len(path.read_text().splitlines()) > LONGEST // 2] == []
