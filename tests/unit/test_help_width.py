"""Help pages on terminals of 60 columns."""

from __future__ import annotations

import pytest

from icekeeper.cli import main
from icekeeper.cli.arguments import EXAMPLES

NARROW, WIDE = 60, 300


def words(page: str) -> set[str]:
    return set(page.split())


@pytest.mark.parametrize("name", ["", *EXAMPLES])
def test_narrow_help_breaks_no_word_and_no_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Typer cuts a word that is longer than its column, and wraps no exit code; examples are there to be copied."""
    shown = {}
    for width in (NARROW, WIDE):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERMINAL_WIDTH", str(width))
        assert main([*name.split(), "--help"]) == 0
        shown[width] = capsys.readouterr().out
    assert words(shown[NARROW]) - words(shown[WIDE]) == set()
    lines = shown[NARROW].splitlines()
    assert [line for line in lines if len(line) > NARROW and not line.startswith("    icekeeper ")] == []
