"""What of the installed packages goes into the functions' layer, and what does not."""

from __future__ import annotations

from pathlib import Path

from artifacts import layer
from artifacts.locks import LAYER_PYTHON
from local_stack.template import load_template


def packages(folder: Path, *paths: str) -> Path:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"12345")
    return folder


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_only_what_a_function_never_uses_is_left_out(tmp_path: Path) -> None:
    needed = ["icekeeper/pipeline/events.py", "pyarrow/libarrow.so.2600", "pyarrow/libarrow_substrait.so.2600"]
    needed += ["zstandard/backend_c.cpython-312-x86_64-linux-gnu.so"]
    unused = ["pyarrow/include/arrow/api.h", "pyarrow/libarrow_flight.so.2600", "rich/console.py", "bin/icekeeper"]
    unused += ["zstandard/_cffi.cpython-312-x86_64-linux-gnu.so"]
    packages(tmp_path, *needed, *unused, "icekeeper/__pycache__/x.pyc")

    layer.prune(tmp_path)

    assert left(tmp_path) == sorted(needed)


def test_what_tells_one_build_from_another_is_left_out(tmp_path: Path) -> None:
    needed = ["icekeeper-0.1.0.dist-info/METADATA"]
    packages(tmp_path, *needed, *(f"icekeeper-0.1.0.dist-info/{name}" for name in ("RECORD", "direct_url.json")))

    layer.prune(tmp_path)

    assert left(tmp_path) == needed


def test_everybody_may_read_it(tmp_path: Path) -> None:
    """Lambda reads it as another user than the one who built it, perhaps with a strict umask."""
    packages(tmp_path, "icekeeper/machine/clock.py")
    for path, mode in ((tmp_path / "icekeeper", 0o700), (tmp_path / "icekeeper" / "clock.py", 0o600)):
        path.chmod(mode)

    layer.open_to_all(tmp_path)

    modes = {path.relative_to(tmp_path).as_posix(): oct(path.stat().st_mode & 0o777) for path in tmp_path.rglob("*")}
    assert modes == {"icekeeper": "0o755", "icekeeper/machine/clock.py": "0o644"}


def test_its_size_is_that_of_its_files(tmp_path: Path) -> None:
    assert layer.size_of(packages(tmp_path, "a/b", "c")) == 10


def test_it_is_built_for_the_python_and_processors_of_the_template() -> None:
    document = load_template()

    assert f"python{LAYER_PYTHON}" == document["Globals"]["Function"]["Runtime"]
    assert sorted(layer.PLATFORMS) == sorted(document["Parameters"]["Architecture"]["AllowedValues"])
