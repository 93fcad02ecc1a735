"""``icekeeper docs``: the pages of the documentation, in a terminal and without a network."""

from __future__ import annotations

import importlib.resources
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icekeeper.cli.arguments import AsJson
from icekeeper.cli.console import EXIT_OK, answer
from icekeeper.errors import PolicyError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def docs(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="a page; without it, list the pages")] = None,
    as_json: AsJson = False,
) -> int:
    """Print a page of the documentation, or the list of pages."""
    pages = _pages()
    if topic is None:
        titles = {name: _title(page.read_text()) for name, page in pages.items()}
        console = answer({"status": "succeeded", "topics": titles}, as_json=as_json)
        for name, title in titles.items():
            console.print(f"{name:22} {title}", soft_wrap=True)
        return EXIT_OK
    page = pages.get(topic.removesuffix(".md"))
    if page is None:
        raise PolicyError(f"there is no page '{topic}'; the pages are {', '.join(pages)}")
    text = re.sub(r"^```(\w+) \w+$", r"```\1", page.read_text(), flags=re.MULTILINE)
    console = answer({"status": "succeeded", "topic": topic, "text": text}, as_json=as_json)
    if as_json:
        return EXIT_OK
    if not console.is_terminal:
        sys.stdout.write(text)
        return EXIT_OK
    from rich.markdown import Markdown

    with console.pager(styles=True):
        console.print(Markdown(text))
    return EXIT_OK


def _pages() -> Mapping[str, Traversable]:
    """Pages for users by topic, from the wheel or from a checkout."""
    installed = importlib.resources.files("icekeeper") / "docs"
    folder = installed if installed.is_dir() else Path(__file__).resolve().parents[5] / "docs"
    pages = {page.name.removesuffix(".md"): page for page in folder.iterdir() if page.name.endswith(".md")}
    operations = {page.name.removesuffix(".md"): page for page in (folder / "operations").iterdir()}
    pages |= {"operations": operations.pop("index"), **operations}
    return dict(sorted(pages.items()))


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")
