"""What the scripts that count the code find in a small tree, and what they write onto the page."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from benchmarks.house.calls import call
from benchmarks.house.count import Room, count_docs, count_source, count_tests, kinds_of_lines, largest_rooms
from benchmarks.house.page import add_column, table
from benchmarks.house.source import functions_used_once, read_modules
from benchmarks.house.traced import CalledFiles

PACKAGE = Path("layers/icekeeper/src/icekeeper")
FILES = {
    "__init__.py": '"""The package."""\n',
    "top.py": '''
        """Uses what is below."""

        from icekeeper.cold import share, used_twice
        from icekeeper.cold.ice import freeze

        # It is cold.
        WARM = used_twice(freeze(share(1)))
        """Warm enough."""
        TEXT = """

        # no comment
        """
        ''',
    "cold/__init__.py": '''
        """A room."""

        from icekeeper.cold.shared import share, used_twice

        __all__ = ["share", "used_twice"]
        ''',
    "cold/shared.py": '''
        """Lowest floor."""

        from dataclasses import dataclass
        from typing import NamedTuple, TypedDict


        @dataclass(frozen=True)
        class Frozen:
            degrees: int


        class Pair(NamedTuple):
            one: int


        class Keys(TypedDict):
            key: str


        def share(depth: int) -> int:
            return share(depth - 1) if depth else 0


        def used_twice(number: int) -> int:
            return number


        def unused() -> None:
            return None
        ''',
    "cold/ice.py": '''
        """Middle floor."""

        from icekeeper.cold import shared as room
        from icekeeper.cold.step import step


        def freeze(number: int) -> int:
            import icekeeper.cold.shared as lowest

            return lowest.used_twice(step(number))
        ''',
    "cold/step.py": '''
        """A step of one caller."""

        from icekeeper.cold.shared import Frozen


        def step(number: int) -> int:
            return Frozen(number).degrees
        ''',
    "operations/melting/melt.py": '"""An operation."""\n\nimport icekeeper.top\n',
}
TEST = '''
    """Tests."""

    import pytest


    def helper() -> None:
        pass


    @pytest.mark.slow
    def test_one() -> None:
        helper()


    class TestMore:
        def test_two(self) -> None:
            helper()
    '''


def write(root: Path, path: str | Path, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(text).removeprefix("\n"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project of seven files, two pages and two files of tests."""
    for path, text in FILES.items():
        write(tmp_path, PACKAGE / path, text)
    write(tmp_path, "tests/unit/test_ice.py", TEST)
    write(tmp_path, "tests/support/ice.py", "X = 1\n")
    for page, size in {"docs/a.md": 5, "docs/deep/b.md": 7, "docs/c.json": 90, "README.md": 11}.items():
        write(tmp_path, page, "x" * size)
    write(tmp_path, "CHANGELOG.md", "é\n")
    write(tmp_path, "CONTRIBUTING.md", "")
    return tmp_path


def test_the_package_is_counted(tree: Path) -> None:
    assert count_source(tree) == {
        "files": 7,
        "lines": 67,
        "lines_of_code": 23,
        "lines_of_imports": 10,
        "lines_of_docstrings": 8,
        "lines_of_comments": 1,
        "blank_lines": 25,
        "median_file": 7,
        "files_under_40_lines": 7,
        "files_under_60_lines": 7,
        "files_with_one_importer": 1,
        "dataclasses": 1,
        "named_tuples": 1,
        "typed_dicts": 1,
        "functions_of_modules": 5,
        "functions_used_once": 3,
    }


def test_every_line_is_of_one_kind(tree: Path) -> None:
    """The lines of a string that is no docstring are code, also where they look blank or like a comment."""
    modules = read_modules(tree / PACKAGE.parent)
    kinds = {"docstring": 2, "import": 2, "comment": 1, "code": 5, "blank": 2}
    assert kinds_of_lines(modules["icekeeper.top"]) == kinds


def test_a_function_is_used_where_it_is_named_outside_itself(tree: Path) -> None:
    """Through a package that passes it on, and through its module, too."""
    found = functions_used_once(read_modules(tree / PACKAGE.parent))
    assert found == {"icekeeper.cold.ice.freeze", "icekeeper.cold.step.step", "icekeeper.cold.shared.share"}


def test_rooms_come_with_their_arrows_and_floors(tree: Path) -> None:
    """A room of ``operations/`` is a room of its own; what no room has, or is beside the package, is left out."""
    (tree / PACKAGE.parent / "beside.py").write_text("import icekeeper\n")
    assert largest_rooms(tree) == [Room("cold", 4, 51, 4, 3), Room("operations/melting", 1, 3, 0, 1)]


def test_tests_and_pages_are_counted(tree: Path) -> None:
    assert count_tests(tree) == {
        "files": 2,
        "lines": 18,
        "lines_of_support": 1,
        "test_functions": 2,
        "lines_in_test_functions": 5,
    }
    sizes = {"bytes_of_docs_and_readme": 23, "bytes_of_changelog": 3, "bytes_of_contributing": 0}
    assert count_docs(tree) == sizes


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("from dataclasses import dataclass\n\n\n@dataclass\nclass A:\n    b: int\n", {"dataclasses": 1}),
        ("import dataclasses\n\n\n@dataclasses.dataclass()\nclass A:\n    b: int\n", {"dataclasses": 1}),
        ("import typing\n\n\nclass A(typing.NamedTuple):\n    b: int\n\n", {"named_tuples": 1}),
        ("import icekeeper.cold.ice\n\n\n\n\n\n", {}),
    ],
)
def test_a_new_module_changes_the_figures(tree: Path, text: str, more: dict[str, int]) -> None:
    before = count_source(tree)
    write(tree, PACKAGE / "cold" / "new.py", text)
    after = count_source(tree)
    counted = ("files", "lines", "lines_of_imports", "dataclasses", "named_tuples", "typed_dicts")
    changes = {name: after[name] - before[name] for name in counted}
    assert {name: change for name, change in changes.items() if change} == {
        "files": 1,
        "lines": 6,
        "lines_of_imports": 1,
        **more,
    }


CALLED = """
    class Policy:
        pass

    class Holder:
        def __init__(self, policy):
            self.policy = policy

    AT_IMPORT = [number for number in range(2)]
    LATER = lambda: None

    def inner(holder):
        return [LATER() for _ in range(2)]

    def outer(number):
        return inner(Holder(Policy())) if number else None
    """


def traced(path: Path, source: Path, call: Callable[[dict[str, Callable[[int], None]]], None]) -> CalledFiles:
    """What is called while a file is run as a module, and then ``call`` with its names."""
    names: dict[str, Callable[[int], None]] = {}
    called = CalledFiles(source)
    sys.setprofile(called)
    try:
        exec(compile(path.read_text(), str(path), "exec"), names)
        call(names)
    finally:
        sys.setprofile(None)
    return called


def test_calls_of_functions_are_noted_and_bodies_of_modules_and_classes_are_not(tmp_path: Path) -> None:
    write(tmp_path, "ours/called.py", CALLED)
    path, source = tmp_path / "ours" / "called.py", tmp_path / "ours"
    assert traced(path, source, lambda names: None).files == set()
    assert traced(path, tmp_path / "other", lambda names: names["outer"](1)).files == set()

    shallow = traced(path, source, lambda names: names["outer"](0))
    assert (shallow.files, shallow.deepest, shallow.with_policy) == ({str(path)}, [f"{path}:outer"], set())
    deep = traced(path, source, lambda names: names["outer"](1))
    assert deep.with_policy == {str(path)}
    inside = [name.rpartition(":")[2] for name in deep.deepest]
    assert [name for name in inside if name != "inner.<locals>.<listcomp>"] == ["outer", "inner", "<lambda>"]


def test_figures_are_written_into_a_column_beside_the_others(tmp_path: Path) -> None:
    page = tmp_path / "house.md"
    page.write_text(f"# House\n\n{table({'before': {'files': '12', 'room 1': 'a'}})}\n\nThe end.\n")
    add_column(page, "after", {"files": "9", "new": "1"})
    add_column(page, "after", {"files": "8"})
    assert page.read_text().splitlines() == [
        "# House",
        "",
        "| figure | goal | before | after |",
        "|---|---|---|---|",
        "| files | ≤ 270 | 12 | 8 |",
        "| room 1 |  | a |  |",
        "| new |  |  | 1 |",
        "",
        "The end.",
    ]


# The bounds of this repository.  Whoever must raise one says in the commit what people can do for it.

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_code_stays_within_its_bounds() -> None:
    source, docs = count_source(REPOSITORY), count_docs(REPOSITORY)
    lines_of_tests = sum(len(module.lines) for module in read_modules(REPOSITORY / "tests").values())
    data_classes = source["dataclasses"] + source["named_tuples"] + source["typed_dicts"]
    found = source["files"], source["lines"], data_classes, lines_of_tests, docs["bytes_of_docs_and_readme"]
    bounds = 290, 72_300, 355, 103_480, 417_300
    assert [f"{count} > {bound}" for count, bound in zip(found, bounds, strict=True) if count > bound] == []


def test_a_compaction_calls_functions_of_few_files() -> None:
    called = call(REPOSITORY, "compact")
    assert (called.files <= 104, called.depth <= 34) == (True, True), (called.files, called.deepest)
