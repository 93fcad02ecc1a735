"""Two SVGs: of every row a bar of each contestant's CPU seconds and wall time; and Icekeeper beside Iceberg-Java."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

_WIDTH, _LABEL, _BAR, _LINE, _HEAD = 900, 250, 480, 17, 26
_LIGHTER = 0.55
# The colours of docs/site.css, for light and dark pages.
_STYLE = """<style>
  svg { --ground: #f4f9fc; --ink: #14222e; --faint: #51646f; --theirs: #b7c6cf; --ours: #0b7285; }
  @media (prefers-color-scheme: dark) {
    svg { --ground: #101c26; --ink: #e4eef4; --faint: #9db1bd; --theirs: #3d5366; --ours: #3bc9db; }
  }
  text { font: 13px system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; fill: var(--ink); }
  .head { font-size: 16px; font-weight: 650; } .faint { fill: var(--faint); } .factor { font-weight: 650; }
</style>"""


def chart(rows: Mapping[str, Any]) -> str:
    """An SVG document; what could not be measured has no bar."""
    parts: list[str] = []
    top = 10
    for row in rows.values():
        measured = {name: e for name, e in row["entrants"].items() if "median" in e}
        if not measured:
            continue
        parts.append(f'<text x="10" y="{top + 16}" class="factor">{escape(row["title"])}</text>')
        top += _HEAD
        most = max(max(e["median"]["wall_s"], e["median"]["cpu_s"]) for e in measured.values()) or 1.0
        for name, entrant in measured.items():
            parts += _bars(name, entrant, most, top)
            top += 2 * _LINE
        top += 12
    return _document(_WIDTH, top + 10, "Wall time and CPU seconds of every contestant", parts)


def _document(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
    ground = f'<rect width="{width}" height="{height}" rx="10" fill="var(--ground)"/>'
    return "\n".join([head, _STYLE, ground, *parts, "</svg>"]) + "\n"


def _bars(name: str, entrant: Mapping[str, Any], most: float, top: int) -> Iterator[str]:
    """The contestant's name, its wall time and, below and lighter, its CPU seconds."""
    colour = "var(--ours)" if name.startswith("icekeeper") else "var(--theirs)"
    yield f'<text x="20" y="{top + 18}">{escape(entrant["title"])}</text>'
    for line, (figure, word) in enumerate((("wall_s", "s"), ("cpu_s", "CPU s"))):
        value = entrant["median"][figure]
        width, y = max(1.0, _BAR * value / most), top + line * _LINE
        opacity = f' opacity="{_LIGHTER}"' if line else ""
        yield f'<rect x="{_LABEL}" y="{y + 3}" width="{width:.1f}" height="{_LINE - 5}" fill="{colour}"{opacity}/>'
        yield f'<text x="{_LABEL + width + 6:.1f}" y="{y + 14}">{value:.2f} {word}</text>'


# The picture of README and of the site's first page.
_RATIOS: Mapping[str, str] = {
    "append_only_copy": "compact 20 files of 17 MB (copied)",
    "deletes_clustered": "compact 1 % position deletes, clustered",
    "vectors_clustered": "compact 1 % deletion vectors, clustered",
    "append_only_decode": "compact 200 small files, 395 MB",
    "sort": "sort the same by two columns",
    "zorder": "z-order the same",
    "expire_snapshots": "expire 2,000 of 2,100 snapshots",
    "remove_orphans": "orphans among 1,000,000 files",
    "rewrite_manifests": "rewrite 1,000 manifests",
}


def ratios(rows: Mapping[str, Any]) -> str:
    """An SVG document: wall time of Icekeeper as a bar within that of Iceberg-Java, of the rows that have both."""
    parts: list[str] = []
    top = 78
    for key, title in _RATIOS.items():
        entrants = rows[key]["entrants"]
        ours = next(entrant["median"] for name, entrant in entrants.items() if name.startswith("icekeeper"))
        theirs = entrants["java"]["median"]
        factor = theirs["wall_s"] / ours["wall_s"]
        times = f"{factor:.0f} ×" if factor >= 10 else f"{factor:.1f} ×"
        parts += [
            f'<text x="20" y="{top + 14}">{escape(title)}</text>',
            f'<rect x="290" y="{top}" width="240" height="20" rx="3" fill="var(--theirs)"/>',
            f'<rect x="290" y="{top}" width="{240 / factor:.1f}" height="20" rx="3" fill="var(--ours)"/>',
            f'<text x="542" y="{top + 14}" class="factor">{times}</text>',
            f'<text x="590" y="{top + 14}" class="faint">{ours["wall_s"]:.1f} of {theirs["wall_s"]:.1f} s</text>',
        ]
        top += 28
    title = "How many times as fast as Iceberg-Java 1.10.2 on Spark"
    key_line = "The same table on the same two cores; in colour: Icekeeper's seconds; whole bar: Iceberg-Java's"
    heads = [f'<text x="20" y="34" class="head">{title}</text>', f'<text x="20" y="56" class="faint">{key_line}</text>']
    return _document(700, top + 14, title, [*heads, *parts])
