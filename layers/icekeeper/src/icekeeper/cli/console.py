"""What the command prints: JSON on standard output for programs, text and progress for people.

With ``--json`` standard output holds exactly one JSON document, also for errors; everything else goes to
standard error.  ``rich`` is imported only by functions that print for people.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TextIO

import typer

from icekeeper.errors import PolicyError
from icekeeper.machine.clock import steady_s
from icekeeper.machine.interrupts import exit_code
from icekeeper.report.activity import PASS, PassShare, amount_text, pace_text, silent
from icekeeper.report.activity import Progress as ProgressCallback
from icekeeper.text import escaped, masked, masked_document, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn
    from rich.text import Text

    from icekeeper.engines.engine import Engine, EngineName
    from icekeeper.report.outcome import ListingWriter


EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DUE = 3
EXIT_UNKNOWN = 4

INTERRUPTED = "Interrupted"

# A log or a pipe has no width; do not cut columns there.
_WIDTH_WITHOUT_TERMINAL = 1_000


_quiet = [False]
_live: list[Progress] = []
"""The progress that a terminal shows now, at most one."""


def be_quiet(*, quiet: bool) -> None:
    """Set whether progress and notices are hidden from now on."""
    _quiet[0] = quiet


class OutputLost(Exception):
    """Standard output cannot be written to: its disk is full, or it is closed."""


def people(*, as_json: bool) -> Console:
    """The console for people's text: standard output, or standard error when programs read standard output."""
    console = _console(stderr=as_json)
    if not console.is_terminal:
        console.width = _WIDTH_WITHOUT_TERMINAL
    return console


def _console(*, stderr: bool) -> Console:
    """A console that escapes all text and interprets no markup and no emoji names (rule: escape-at-the-edge)."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.text import Text

    class Unbroken(Console):
        """A reader that closes the pipe early, such as ``head``, does not change the work or the exit code."""

        def on_broken_pipe(self) -> None:
            self.quiet = True
            _silence(sys.stderr if stderr else sys.stdout)

        def print(self, *objects: Any, **options: Any) -> None:
            """As :class:`rich.console.Console` does; raises OutputLost if standard output cannot be written to."""
            for lines in _live:
                if lines.console is not self and self.is_terminal:  # the progress would be drawn over the text
                    lines.console.print(*objects, **options)
                    return
            try:
                super().print(*objects, **options)
            except OSError as error:
                if stderr:
                    raise
                raise OutputLost(error.strerror or str(error)) from error

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            """As :class:`rich.console.Console` does, but with all texts escaped, also in tables and progress bars."""
            if isinstance(renderable, str):
                renderable = escaped(renderable)
            elif isinstance(renderable, Text) and not renderable.plain.isprintable():
                renderable = _escaped_text(renderable)
            return super().render(renderable, options)

    return Unbroken(stderr=stderr, highlight=False, emoji=False, markup=False)


def _escaped_text(text: Text) -> Text:
    """The same text, escaped, in its styles."""
    from rich.text import Span

    starts = [0, *accumulate(len(escaped(character)) for character in text.plain)]
    shown = text.blank_copy(escaped(text.plain))
    shown.spans = [Span(starts[span.start], starts[span.end], span.style) for span in text.spans]
    return shown


def about(table: str, catalog: str) -> dict[str, str]:
    """The first keys of every document about a table."""
    return {"table": table, "catalog": catalog, "status": "succeeded"}


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on standard output, with secrets masked, and each snapshot id also as text.

    Raises:
        OutputLost: standard output cannot be written to.
    """
    shown = with_id_texts(masked_document(document))
    print_text(printable_json(json.dumps(shown, indent=2, ensure_ascii=False)) + "\n")


def print_text(text: str) -> None:
    """Print text for programs on standard output as it is.

    Raises:
        OutputLost: standard output cannot be written to.
    """
    if sys.stdout is None:  # ">&-"
        raise OutputLost("it is closed")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe early
        silence_output()
    except OSError as error:
        raise OutputLost(error.strerror or str(error)) from error


def write_output(option: str, output: Path, text: str, *, mode: int = 0o600) -> None:
    """Write the file that an option names, or raise PolicyError and leave the file as it was; ``-`` is standard output.

    By default only its owner may read it, because it names tables and files (rule: state-is-private).
    """
    from icekeeper.storage.local_files import write_whole

    if str(output) == "-":
        sys.stdout.write(text)
        return
    if output.exists() and not output.is_file():  # a device or a pipe would be replaced
        raise PolicyError(f"{option} {output} cannot be written: it is not a regular file; choose another file")
    try:
        output.parent.stat()  # a missing folder is probably a typing error; do not create it
        write_whole(str(output.absolute()), text.encode(), mode=mode)
    except OSError as error:
        raise PolicyError(
            f"{option} {output} cannot be written: {error.strerror or error}; choose another file"
        ) from None


def silence_output() -> None:
    """Discard what Python flushes to standard output when it ends."""
    _silence(sys.stdout)


def _silence(stream: TextIO | None) -> None:
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def answer(document: Mapping[str, Any], *, as_json: bool) -> Console:
    """With ``as_json``, print the document for programs; returns the console for the text for people."""
    if as_json:
        print_json(document)
    return people(as_json=as_json)


def with_id_texts(document: Any) -> Any:
    """The same JSON, with ``snapshot_id_text`` beside each ``snapshot_id``, and ``snapshot_ids_text`` likewise.

    JavaScript and jq read numbers as doubles, which are not exact above 2^53; snapshot ids are larger.
    """
    if isinstance(document, list):
        return [with_id_texts(part) for part in document]
    if not isinstance(document, dict):
        return document
    texts: dict[str, Any] = {}
    for key, value in document.items():
        texts[key] = with_id_texts(value)
        if key == "snapshot_id":
            texts["snapshot_id_text"] = None if value is None else str(value)
        elif key == "snapshot_ids":
            texts["snapshot_ids_text"] = [str(snapshot_id) for snapshot_id in value]
    return texts


def print_error(kind: str, message: str, *, as_json: bool, page: str = "") -> int:
    """Print one sentence on standard error; with ``--json`` also the error document on standard output.

    ``page`` is the page of ``icekeeper docs`` that says more; empty: none.  Returns the exit code of a failure.
    """
    if as_json:
        print_json({"error": {"type": kind, "message": message, **({"docs": page} if page else {})}})
    # Never wrapped: paths and keys must stay as they are.  Some messages of libraries have several lines.
    sentence = " ".join(masked(message).split())
    more = f" (icekeeper docs {page})" if page else ""
    console = _console(stderr=True)
    console.print("error: ", style="bold red", end="", soft_wrap=True)
    console.print(f"{sentence}{more}", soft_wrap=True)
    return EXIT_FAILED


def print_interrupted(sentence: str, document: Mapping[str, Any] | None = None, *, as_json: bool) -> int:
    """Print that the command was interrupted, as errors are; with ``--json`` the document contains the error.

    Returns the exit code.
    """
    if as_json and document is not None:
        print_json({**document, "error": {"type": INTERRUPTED, "message": sentence}})
        as_json = False
    print_error(INTERRUPTED, sentence, as_json=as_json)
    return exit_code()


def print_failed(sentence: str) -> int:
    """Print on standard error one sentence about the failure that standard output details; returns the exit code."""
    return print_error("", sentence, as_json=False)


def notify(sentence: str) -> None:
    """Print one sentence about the progress on standard error, unless the command is quiet."""
    if not _quiet[0]:
        people(as_json=True).print(masked(sentence), soft_wrap=True)


def listings() -> ListingWriter:
    """A writer for lists of files that are too long for a document: it writes them to the state's folder."""
    from icekeeper.report.outcome import listing_in
    from icekeeper.state.open import state_folder

    return listing_in(state_folder(os.environ) / "listings")


def print_usage_error(error: Exception, *, as_json: bool) -> None:
    """Print typer's error about a wrong call; for a group without a command, that error is the help text."""
    message = str(getattr(error, "format_message", error.__str__)()).replace("Value error, ", "")
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(f"{message}\n")
    else:
        context = getattr(error, "ctx", None)
        see = f" ({context.command_path} --help says more)" if context is not None else ""
        print_error("UsageError", message.rstrip(".") + see, as_json=as_json)


# Characters of the bar, and from which width of a terminal it is longer.
_BAR, _WIDE = 10, 120


def _cut_text(template: str) -> ProgressColumn:
    """Text that is cut where the line is too narrow, so that bar and clocks stay whole."""
    from rich.progress import Task, TextColumn
    from rich.table import Column

    class Cut(TextColumn):
        def render(self, task: Task) -> Text:
            text = super().render(task)
            text.no_wrap, text.overflow = True, "ellipsis"
            return text

    return Cut(template, markup=False, table_column=Column())


@contextmanager
def progress_bar() -> Iterator[ProgressCallback]:
    """Show on standard error, while the block runs, a line for each operation: its phase, progress, speed, remaining
    time, and the share of the pass that is done.  Without a terminal, print a line every 30 seconds."""
    console = _console(stderr=True)
    if _quiet[0]:
        yield silent
        return
    if not console.is_terminal:
        with heartbeat(lambda line: console.print(line, soft_wrap=True)) as progress:
            yield progress
        return
    from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn
    from rich.table import Column

    label, amount = _cut_text("{task.description}"), _cut_text("{task.fields[amount]}")
    bar = BarColumn(_BAR if console.width < _WIDE else 4 * _BAR, table_column=Column(no_wrap=True))
    clocks = (column(table_column=Column(no_wrap=True)) for column in (TimeElapsedColumn, TimeRemainingColumn))
    columns = (label, bar, amount, *clocks)
    with Progress(*columns, console=console, transient=True) as lines:
        phases: dict[str, tuple[str, Any]] = {}
        share = PassShare()

        def show(what: str, done: int, total: int) -> None:
            share.note(what, done, total)
            if what.startswith(PASS):  # of the next table
                for _, task in phases.values():
                    lines.remove_task(task)
                phases.clear()
                return
            operation = what.partition(":")[0]
            phase, task = phases.get(operation, ("", None))
            if phase != what:
                if task is not None:
                    lines.remove_task(task)
                task = lines.add_task(what, total=total or None, amount="")
                phases[operation] = what, task
                lines.refresh()  # a phase may end before the next tenth of a second
            speed = next(line.speed for line in lines.tasks if line.id == task)
            parts = [amount_text(what, done, total)] if total else []
            parts += [pace_text(what, speed)] if speed else []
            parts += [f"{share.percent} % of the pass"] if share.percent else []
            lines.update(task, completed=done, total=total or None, amount=", ".join(parts))

        _live.append(lines)
        try:
            yield show
        finally:
            _live.remove(lines)


_HEARTBEAT_S = 30.0


@contextmanager
def heartbeat(
    notify: Callable[[str], object], every_s: float = _HEARTBEAT_S, monotonic_s: Callable[[], float] = steady_s
) -> Iterator[ProgressCallback]:
    """Every ``every_s`` seconds of the block, report the running phase: its progress, speed, remaining time, and the
    share of the pass that is done."""
    latest, ended, share = list[tuple[str, int, int]](), Event(), PassShare()
    began_s: dict[str, float] = {}

    def progress(what: str, done: int, total: int) -> None:
        share.note(what, done, total)
        if not what.startswith(PASS):
            began_s.setdefault(what, monotonic_s())
            latest[:] = [(what, done, total)]

    def beat() -> None:
        while not ended.wait(every_s):
            for what, done, total in latest[-1:]:
                notify(_line(what, done, total, monotonic_s() - began_s[what], share.percent))

    Thread(target=beat, daemon=True, name="icekeeper-heartbeat").start()
    try:
        yield progress
    finally:
        ended.set()


def _line(what: str, done: int, total: int, seconds: float, percent: int) -> str:
    text = f"{what} {amount_text(what, done, total)}" if total else what
    if total and done and seconds > 0:
        left_s = (total - done) * seconds / done
        text += f", {pace_text(what, done / seconds)}, {left_s:.0f} s left"
    return f"{text} ({percent} % of the pass)" if percent else text


@contextmanager
def engine_and_progress(name: EngineName, *, as_json: bool) -> Iterator[tuple[Engine, ProgressCallback]]:
    """The engine for the work in the block, and its progress bars.

    If the pass is interrupted, this is reported first, because stopping the engine may take a while; then the command
    ends.

    Raises:
        PolicyError: PySpark is not installed.
        typer.Exit: the pass was interrupted.
    """
    from icekeeper.maintenance.run_pass import PassInterrupted
    from icekeeper.runtime import open_engine

    with open_engine(name) as engine:
        try:
            with progress_bar() as progress:
                yield engine, progress
        except PassInterrupted as stopped:
            document = stopped.outcome.to_json(listings()) if as_json else None
            raise typer.Exit(print_interrupted(str(stopped), document, as_json=as_json)) from None


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Show on standard error what the command waits for, and how long it has waited.

    Yields a function that changes the text. Nothing is shown where standard error is not a terminal.
    """
    console = _console(stderr=True)
    if _quiet[0] or not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn
    from rich.table import Column

    whole = Column(no_wrap=True)
    columns = (SpinnerColumn(), _cut_text("{task.description}"), TimeElapsedColumn(table_column=whole))
    with Progress(*columns, console=console, transient=True) as line:
        task = line.add_task(text, total=None)
        yield lambda news: line.update(task, description=news)
