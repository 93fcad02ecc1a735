"""What of the installed packages goes into the functions' layer, and what does not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from local_stack.template import TEMPLATE, load_template


@pytest.fixture
def layer() -> Any:
    spec = importlib.util.spec_from_file_location("build_layer", TEMPLATE.parent / "layers" / "build_layer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def packages(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"12345")
    return folder


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_only_what_a_function_never_uses_is_left_out(layer: Any, tmp_path: Path) -> None:
    needed = ["icekeeper/pipeline/events.py", "pyarrow/libarrow.so.2600", "pyarrow/libarrow_substrait.so.2600"]
    unused = ["pyarrow/include/arrow/api.h", "pyarrow/libarrow_flight.so.2600", "rich/console.py", "bin/icekeeper"]
    packages(tmp_path, *needed, *unused, "icekeeper/__pycache__/x.pyc")

    layer.prune(tmp_path)

    assert left(tmp_path) == sorted(needed)


def test_its_size_is_that_of_its_files(layer: Any, tmp_path: Path) -> None:
    assert layer.size_of(packages(tmp_path, "a/b", "c")) == 10


def test_it_is_built_for_the_python_and_processors_of_the_template(layer: Any) -> None:
    document = load_template()

    assert f"python{layer.PYTHON}" == document["Globals"]["Function"]["Runtime"]
    assert sorted(layer.PLATFORMS) == sorted(document["Parameters"]["Architecture"]["AllowedValues"])
