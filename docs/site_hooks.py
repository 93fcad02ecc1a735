"""What the site has beyond the pages of this folder: the reference of commands and errors from the code itself, and
README's first screen on the first page."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from icekeeper import errors


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages."""
    for name, content in (("commands.md", commands()), ("errors.md", error_names())):
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Name only the language of a block, as Markdown wants it: a word behind it is for our tests.  Links to files
    beside this folder become text."""
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["toc"]
        links = markdown.partition("\n\n")[2].partition("\n\n")[2]  # without its heading and first sentence
        markdown = f"{first_screen()}\n{links}"
    markdown = re.sub(r"^```(\w+) \w+$", r"```\1", markdown, flags=re.MULTILINE)
    beside = r"\.\./" * (page.file.src_uri.count("/") + 1)
    return re.sub(rf"\[([^]]+)\]\({beside}[^)]*\)", r"\1", markdown)


def first_screen() -> str:
    """README up to its installation, with links as they are from this folder."""
    readme = Path(__file__).parents[1].joinpath("README.md").read_text().partition("\n## ")[0]
    return re.sub(r'(?<=[("])docs/', "", readme)


def commands() -> str:
    """All commands with their arguments and options."""
    command = [sys.executable, "-m", "typer", "icekeeper.cli.app", "utils", "docs", "--name", "icekeeper"]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    hidden = re.compile(r"^\* `run-worker`[^\n]*\n|^## `icekeeper run-worker`.*?(?=^## )", re.MULTILINE | re.DOTALL)
    return hidden.sub("", made.replace("# `icekeeper`", "# Commands", 1))


def error_names() -> str:
    """All errors with their meaning, and the exit code of the command."""
    rows = ["# Errors", "", "`error.type` of `--json`, and what the library raises.", ""]
    rows += ["| error | exit code | meaning |", "|---|---|---|"]
    for name, kind in sorted(vars(errors).items()):
        if inspect.isclass(kind) and issubclass(kind, errors.MaintenanceError):
            meaning = (kind.__doc__ or "").partition("\n\n")[0].replace("\n    ", " ").replace("``", "`")
            rows.append(f"| `{name}` | {2 if issubclass(kind, errors.PolicyError) else 1} | {meaning} |")
    return "\n".join(rows) + "\n"
