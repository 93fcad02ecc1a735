"""Real paths of local files: what is remembered of folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from icekeeper.storage.paths import real_path


def test_a_relative_folder_is_that_of_the_working_folder_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another working folder had below the same name is not remembered."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert real_path("./f") == str(tmp_path / name / "f")
        assert real_path("wh/f") == str(tmp_path / name / "wh" / "f")
