"""One SVG: for every row a bar of each contestant's CPU seconds and wall time, as a share of the slowest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_WIDTH, _LABEL, _BAR, _LINE, _HEAD = 900, 250, 480, 17, 26
_OURS, _THEIRS, _LIGHTER = "#1f6feb", "#8c959f", 0.55


def chart(rows: Mapping[str, Any]) -> str:
    """An SVG document; what could not be measured has no bar."""
    parts: list[str] = []
    top = 10
    for row in rows.values():
        measured = {name: e for name, e in row["entrants"].items() if "median" in e}
        if not measured:
            continue
        parts.append(f'<text x="10" y="{top + 16}" font-weight="bold">{escape(row["title"])}</text>')
        top += _HEAD
        most = max(max(e["median"]["wall_s"], e["median"]["cpu_s"]) for e in measured.values()) or 1.0
        for name, entrant in measured.items():
            parts += _bars(name, entrant, most, top)
            top += 2 * _LINE
        top += 12
    style = "font-family: sans-serif; font-size: 12px; fill: #24292f"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top + 10}" style="{style}">'
    ground = f'<rect width="{_WIDTH}" height="{top + 10}" fill="#ffffff"/>'
    return "\n".join([head, ground, *parts, "</svg>"]) + "\n"


def _bars(name: str, entrant: Mapping[str, Any], most: float, top: int) -> Iterator[str]:
    """The contestant's name, its wall time and, below and lighter, its CPU seconds."""
    colour = _OURS if name.startswith("icekeeper") else _THEIRS
    yield f'<text x="20" y="{top + 18}">{escape(entrant["title"])}</text>'
    for line, (figure, word) in enumerate((("wall_s", "s"), ("cpu_s", "CPU s"))):
        value = entrant["median"][figure]
        width, y = max(1.0, _BAR * value / most), top + line * _LINE
        opacity = f' opacity="{_LIGHTER}"' if line else ""
        yield f'<rect x="{_LABEL}" y="{y + 3}" width="{width:.1f}" height="{_LINE - 5}" fill="{colour}"{opacity}/>'
        yield f'<text x="{_LABEL + width + 6:.1f}" y="{y + 14}">{value:.2f} {word}</text>'
