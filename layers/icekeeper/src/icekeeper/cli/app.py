"""Commands, exit codes and errors of ``icekeeper``.

Exit codes: 0 every operation succeeded or was skipped; 1 the pass is failed or partial, damage was found, or
something cannot be reached or read; 2 the call is wrong; 3 with ``--exit-code``: a dry run found work; 4 it is
unknown whether rows are gone; 130 Ctrl-C
interrupted the command, 143 SIGTERM ended it.

A command imports its modules when it runs, so that help and usage errors appear without delay.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icekeeper.cli.arguments import (
    EXIT_CODES,
    AsJson,
    CatalogName,
    CommandGroup,
    Engine,
    Settings,
    Unsafe,
    overrides,
    time_ms,
)
from icekeeper.cli.console import (
    EXIT_FAILED,
    EXIT_OK,
    EXIT_USAGE,
    OutputLost,
    answer,
    be_quiet,
    engine_and_progress,
    people,
    print_error,
    print_failed,
    print_interrupted,
    print_json,
    print_usage_error,
    silence_output,
)
from icekeeper.cli.docs import docs
from icekeeper.cli.doctor import doctor
from icekeeper.cli.erased import erased
from icekeeper.cli.maintain import maintain
from icekeeper.cli.metrics import metrics
from icekeeper.cli.passes import history, orphans, plan, request_app, run, run_worker
from icekeeper.cli.policy import policy_app
from icekeeper.cli.protection import claims_app, pause, pin_app, resume, stage_app
from icekeeper.cli.repair import repair
from icekeeper.cli.reports import advise, health, report
from icekeeper.cli.rollback import rollback
from icekeeper.cli.saved_plans import apply
from icekeeper.cli.settings_file import mention_file_here, policy_check, policy_init
from icekeeper.cli.several import Shown, Tables, answer_each
from icekeeper.cli.tables import list_tables, show
from icekeeper.engines.engine import EngineName, product_engine
from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.machine.interrupts import set_grace
from icekeeper.report.activity import JsonLines, is_json
from icekeeper.text import MaskingFormatter, counted

if TYPE_CHECKING:
    from icekeeper.model import TableName
    from icekeeper.verification.checks import Verification
    from icekeeper.verification.deep import Extent

log = logging.getLogger(__name__)

app = typer.Typer(
    name="icekeeper",
    cls=CommandGroup,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExit codes:\n" + "\n".join(f"  {code}" for code in EXIT_CODES),
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
policy_app.command("init")(policy_init)
policy_app.command("check")(policy_check)
app.add_typer(policy_app, name="policy")
app.add_typer(pin_app, name="pin")
app.add_typer(stage_app, name="stage")
app.add_typer(claims_app, name="claims")
app.add_typer(request_app, name="request")
app.command("list")(list_tables)
app.command()(show)
app.command()(maintain)
app.command()(plan)
app.command()(apply)
app.command()(pause)
app.command()(resume)
app.command()(rollback)
app.command()(health)
app.command()(advise)
app.command()(orphans)
app.command()(history)
app.command()(report)
app.command()(repair)
app.command()(erased)
app.command()(docs)
app.command()(doctor)
app.command()(metrics)
app.command()(run)
app.command("run-worker", hidden=True)(run_worker)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        sys.stdout.write(f"icekeeper {version('icekeeper')}\n")
        raise typer.Exit


# The commands that say whether a settings file of the current folder counts.
_OF_SETTINGS = ("policy", "detect", "plan", "maintain", "run")


@app.callback()
def icekeeper(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version, and exit")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="log each step and commit on standard error")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="hide progress; print only results and errors")] = False,
    grace: Annotated[
        str | None,
        typer.Option("--grace", metavar="TIME", help="after Ctrl-C or SIGTERM end within this time, by default 25s"),
    ] = None,
) -> None:
    """Keeps Apache Iceberg tables healthy: compaction, expiry, orphan removal, manifests, statistics."""
    if verbose and quiet:
        raise PolicyError("--verbose and --quiet contradict each other; give one of them")
    logging.getLogger("icekeeper").setLevel(logging.DEBUG if verbose else logging.NOTSET)
    be_quiet(quiet=quiet)
    if grace is not None:
        set_grace(time_ms(grace, "--grace") / 1000)
    if context.invoked_subcommand in _OF_SETTINGS and os.path.exists("icekeeper.yaml"):
        mention_file_here()


@app.command()
def detect(
    catalog: CatalogName,
    tables: Tables = None,
    settings: Settings = None,
    show_all: Annotated[bool, typer.Option("--all", help="print also the tables that need no work, and why")] = False,
    unsafe: Unsafe = False,
    as_json: AsJson = False,
) -> int:
    """Find the tables of a catalog that need maintenance, and say why; with tables or patterns, only among these.

    The priority, 0 to 1, grows with each reason; runs begin with the highest (icekeeper docs detection).
    """
    from icekeeper.detection.proposal import detection_json
    from icekeeper.report.terminal import print_detection
    from icekeeper.runtime import Runtime

    runtime, chosen = Runtime.open(catalog), overrides(settings, about="one detection")
    report = runtime.detect(chosen, unsafe=unsafe, patterns=tables or ())
    unread = [skip.table for skip in report.skipped if skip.is_error]
    document = {
        **detection_json(runtime.catalog.id.name, report),
        **({} if tables else {"next_run": runtime.next_run(report, chosen, unsafe=unsafe)}),
        "status": "partial" if unread else "succeeded",
    }
    console = answer(document, as_json=as_json)
    print_detection(console, document, show_all=show_all)
    sentence = f"{counted(len(unread), 'table')} could not be assessed: {', '.join(unread)}; the lines above say why"
    return print_failed(sentence) if unread else EXIT_OK


@app.command()
def verify(
    catalog: CatalogName,
    tables: Tables = None,
    deep: Annotated[bool, typer.Option("--deep", help="also read the files of all branches and tags")] = False,
    sample: Annotated[
        str | None, typer.Option("--sample", metavar="PERCENT", help="with --deep: read only this share, such as 10%")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="with --deep: read only files added since, such as 7d")
    ] = None,
    engine: Engine = EngineName.AUTO,
    as_json: AsJson = False,
) -> int:
    """Check that every referenced file exists, that counts add up, and that metadata follows the specification.

    With --deep, read data and delete files, and compare rows, deletes and row ids with what manifests say.
    """
    from icekeeper.report.terminal import print_problems
    from icekeeper.runtime import Runtime

    if not deep and (sample or since):
        raise PolicyError("--sample and --since choose among the files that --deep reads; add --deep")
    extent = _extent(sample, since) if deep else None
    runtime = Runtime.open(catalog)

    def answered(found: Verification) -> Shown:
        document = {**found.to_json(), "catalog": catalog, "status": "succeeded" if found.ok else "failed"}
        sentence = f"{found.table} is damaged: {counted(len(found.problems), 'problem')} found"
        if not found.problems:
            sentence = f"{counted(len(found.unread), 'file')} of {found.table} could not be read"
        problem = "" if found.ok else f"{sentence}; the lines above say what to do"
        return Shown(document, lambda console: print_problems(console, document), problem)

    if extent is None:
        return answer_each(runtime.catalog, tables, lambda name: answered(runtime.verify(name)), as_json=as_json)
    with engine_and_progress(engine, as_json=as_json) as (started, progress):

        def read(name: TableName) -> Shown:
            return answered(runtime.verify(name, started, extent, progress))

        return answer_each(runtime.catalog, tables, read, as_json=as_json)


def _extent(sample: str | None, since: str | None) -> Extent:
    """Which files ``verify --deep`` reads; another sample at each call.

    Raises:
        PolicyError: an option has another form.
    """
    from icekeeper.machine.clock import system_clock
    from icekeeper.verification.deep import Extent

    now_ms, percent = system_clock(), 100.0
    if sample is not None:
        match = re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)%?", sample.strip())
        percent = 0.0 if match is None else float(match[1])
        if not 0 < percent <= 100:
            raise PolicyError(f"--sample takes a share like 10% or 0.5%, at most 100%, not '{sample}'")
    since_ms = None if since is None else now_ms - time_ms(since, "--since")
    return Extent(share=percent / 100, since_ms=since_ms, seed=now_ms)


@app.command()
def demo(
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="keep the bucket in DIR, and print how to explore it")
    ] = None,
    explore: Annotated[
        Path | None, typer.Option("--explore", metavar="DIR", help="serve a bucket kept earlier, until interrupted")
    ] = None,
    engine: Engine = EngineName.AUTO,
    as_json: AsJson = False,
) -> int:
    """Make a messy table bucket healthy, on this machine, and prove that no row changed."""
    from icekeeper.demo import run  # its readers and its server are optional to install

    if explore is not None:
        run.explore(explore, people(as_json=as_json))
    document = run.run_demo(keep, product_engine(engine), people(as_json=as_json))
    if as_json:
        print_json({**document, "catalog": run.CATALOG, "status": "succeeded" if document["ok"] else "failed"})
    return EXIT_OK if document["ok"] else print_failed("the demonstration did not leave every table healthy")


def _start_logging() -> None:
    # CRITICAL by default: libraries log errors that they handle themselves; a failure is printed as one sentence.
    level = (os.environ.get("ICEKEEPER_LOG") or "CRITICAL").upper()
    if level not in logging.getLevelNamesMapping():
        known = ", ".join(logging.getLevelNamesMapping())
        raise PolicyError(f"environment variable ICEKEEPER_LOG cannot be '{level}'; levels are {known}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if is_json(os.environ) else MaskingFormatter())
    logging.basicConfig(level=level, handlers=[handler])
    if not os.environ.get("ICEKEEPER_LOG"):
        # A warning about refused settings of a catalog's server may explain the failure that follows.  A literal:
        # importing the module would slow down commands that open no catalog.
        logging.getLogger("icekeeper.catalogs.server_settings").setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


def _require_text(given: Sequence[str]) -> None:
    """Refuse arguments that this locale could not decode: they cannot name anything that exists."""
    for argument in given:
        if any("\udc80" <= character <= "\udcff" for character in argument):
            shown = argument.encode("ascii", "backslashreplace").decode()
            raise PolicyError(
                f"argument '{shown}' is not text in this locale; set LC_ALL=C.UTF-8, or write it in UTF-8"
            )


def _options_first(given: Sequence[str]) -> list[str]:
    """The arguments with ``-v``, ``-q`` and ``--grace TIME`` in front, where they apply to every command."""
    end = given.index("--") if "--" in given else len(given)
    ours, others, takes_value = list[str](), list[str](), False
    for word in given[:end]:
        is_ours = takes_value or word in ("-v", "--verbose", "-q", "--quiet", "--grace") or word.startswith("--grace=")
        (ours if is_ours else others).append(word)
        takes_value = word == "--grace" and not takes_value
    return [*ours, *others, *given[end:]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; every failure becomes one sentence and the right exit code."""
    given = _options_first(list(sys.argv[1:] if arguments is None else arguments))
    try:
        return _run(given, as_json="--json" in given)
    except OutputLost as error:  # the result is lost, so the command failed
        silence_output()
        return print_error("OutputLost", f"standard output cannot be written to: {error}", as_json=False)


def _run(given: Sequence[str], *, as_json: bool) -> int:
    try:
        try:
            _require_text(given)
            _start_logging()
            result = app(args=list(given), prog_name="icekeeper", standalone_mode=False)
            return result if isinstance(result, int) else EXIT_OK
        except PolicyError as error:
            raise type(error)(f"{error}{error.hint()}") from error
    except typer.TyperException as error:
        print_usage_error(error, as_json=as_json)
        return EXIT_USAGE
    except PolicyError as error:
        print_error(type(error).__name__, str(error), as_json=as_json, page=error.page)
        return EXIT_USAGE
    except MaintenanceError as error:
        return print_error(type(error).__name__, str(error), as_json=as_json, page=error.page)
    except (KeyboardInterrupt, typer.Abort):
        return print_interrupted("interrupted; the command did not finish", as_json=as_json)
    except BrokenPipeError:  # the reader of our output has closed it; Python must not try to flush the rest
        silence_output()
        return EXIT_FAILED
    except OutputLost:
        raise
    except Exception as error:
        # A bug: documents, manifests and files that break the specification raise errors of ours
        # (rule: damage-ends-in-a-named-error).
        log.exception("unexpected")
        kind = type(error).__name__
        return print_error(kind, f"unexpected {kind}: {error} (ICEKEEPER_LOG=ERROR shows where)", as_json=as_json)


if __name__ == "__main__":
    sys.exit(main())
