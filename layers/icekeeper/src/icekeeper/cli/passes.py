"""Commands about passes: ``plan``, ``run``, ``orphans``, ``request`` and ``history``."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from icekeeper.cli.arguments import (
    AsJson,
    CatalogName,
    Catalogs,
    CommandGroup,
    Engine,
    Operations,
    Patterns,
    Settings,
    Table,
    Unsafe,
    only_catalogs,
    overrides,
    table_name,
    time_ms,
)
from icekeeper.cli.console import (
    EXIT_OK,
    about,
    answer,
    engine_and_progress,
    listings,
    notify,
    people,
    print_failed,
    print_interrupted,
    print_json,
    waiting,
)
from icekeeper.cli.metrics import HttpAddress, HttpPage, HttpPort, served_http
from icekeeper.cli.saved_plans import SaveAs, plan_each, save_plan
from icekeeper.cli.several import AllTables, Tables, chosen_tables, names_one
from icekeeper.engines.engine import EngineName
from icekeeper.errors import PolicyError
from icekeeper.machine.clock import HOUR_MS, iso_utc, system_clock
from icekeeper.machine.metering import GETS_PER_FILE
from icekeeper.report.prices import COPIED_GB_USD, GETS_1000_USD, PUTS_1000_USD, REWRITTEN_GB_USD
from icekeeper.text import counted, size_text, usd_text

if TYPE_CHECKING:
    from types import FrameType

    from rich.console import Console

    from icekeeper.maintenance.saved_plan import SavedTable
    from icekeeper.model import TableName
    from icekeeper.pipeline.request_pass import Answer
    from icekeeper.report.outcome import PassOutcome
    from icekeeper.state.requests import MaintenanceRequest
    from icekeeper.state.store import PassRecord


def history(
    tables: Tables = None,
    catalog: Annotated[
        str | None,
        typer.Option("--catalog", "-c", metavar="C", help="one catalog; without it, all catalogs in the state"),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME|DATE", help="24h, 7d or 2026-11-01 (UTC); for all tables 24h by default"),
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="only passes that failed, were partial or were refused")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help="how many, newest first; for one table 20 by default"),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Print the newest passes that changed, found or refused something, from the journal.

    Without a table, or with several tables or patterns: those of the last 24 hours, also of tables that are gone.
    """
    from icekeeper.catalogs.catalog import identity_of
    from icekeeper.machine.resources import variables_set
    from icekeeper.policy.policy_file import check_patterns, matches
    from icekeeper.report.terminal import print_passes
    from icekeeper.runtime import Runtime
    from icekeeper.state.open import open_state

    now_ms = system_clock()
    since_ms = None if since is None else _since_ms(since, now_ms)
    if tables is not None and names_one(tables):
        catalog, table = catalog or only_catalogs()[0], tables[0]
        handle = Runtime.open(catalog).table(table_name(table))
        identity = identity_of(handle.catalog, handle.load())
        all_of_them = since_ms is not None or failed
        records = handle.state.history(identity, limit=_ALL_PASSES if all_of_them else limit or 20)
        begin: dict[str, Any] = about(table, catalog)
    else:
        check_patterns(tables or ())
        since_ms = now_ms - 24 * HOUR_MS if since_ms is None else since_ms
        state = open_state(variables_set(os.environ))
        with state.kept_open():
            records = state.passes(since_ms, now_ms=now_ms)
        begin = {"catalog": catalog, "status": "succeeded", "since_ms": since_ms}
    chosen = [
        record
        for record in records
        if (since_ms is None or record.finished_ms >= since_ms)
        and (not failed or record.status != "succeeded")
        and ("table" in begin or catalog in (None, *record.identity.catalog))
        and ("table" in begin or matches(str(record.identity.table), tables or ()))
    ][:limit]
    passes = [pass_json(record) for record in chosen]
    totals = totals_of(passes)
    console = answer({**begin, "passes": passes, "totals": totals}, as_json=as_json)
    print_passes(console, passes, totals, is_of_fleet="table" not in begin)
    return EXIT_OK


_ALL_PASSES = 10**6


def _since_ms(text: str, now_ms: int) -> int:
    """Epoch milliseconds of a duration before now, such as ``24h``, or of the start of a day in UTC.

    Raises:
        PolicyError: the text is neither, or more than 366 days ago.
    """
    try:
        day_ms = int(datetime.strptime(f"{text.strip()}+0000", "%Y-%m-%d%z").timestamp()) * 1000
    except ValueError:
        try:
            return now_ms - time_ms(text, "--since")
        except PolicyError:
            raise PolicyError(f"--since takes a time like 24h or 7d, or a day like 2026-11-01, not '{text}'") from None
    if not 0 <= now_ms - day_ms <= 366 * 24 * HOUR_MS:
        raise PolicyError(f"--since takes a day within the last 366 days, not '{text}'")
    return day_ms


def pass_json(record: PassRecord) -> dict[str, Any]:
    """One pass as the document shows it; times in epoch milliseconds."""
    from icekeeper.report.outcome import FREED

    found = record.metrics
    before, after = (sum(found.get(key, 0) for key in keys) for keys in (_FILES_BEFORE, _FILES_AFTER))
    return {
        "run_id": record.run_id,
        "started_ms": record.started_ms,
        "finished_ms": record.finished_ms,
        "duration_ms": record.finished_ms - record.started_ms,
        "status": record.status,
        "summary": record.summary,
        "engine": record.engine,
        "metrics": dict(found),
        "table": str(record.identity.table),
        "catalog": record.identity.catalog.name,
        "bytes_freed": sum(found.get(key, 0) for key in FREED),
        "files_before": before,
        "files_after": after,
        "requests_saved": max(0, before - after) * GETS_PER_FILE,
        "cost_usd": round(_cost_usd(found, before, after), 9),
    }


def _cost_usd(found: Mapping[str, int | float], before: float, after: float) -> float:
    """The estimated cost of the rewrites of a pass, by the prices of ``plan``; not metered."""
    copied = found.get("compact.bytes_copied", 0)
    decoded = max(0, found.get("compact.bytes_read", 0) - copied)
    requests = before * GETS_PER_FILE * GETS_1000_USD + after * PUTS_1000_USD
    sizes = copied * COPIED_GB_USD + decoded * REWRITTEN_GB_USD
    return float(requests) / 1000 + float(sizes) / 1024**3


_FILES_BEFORE = ("compact.files_merged", "compact.delete_files_removed", "rewrite_position_deletes.files_merged")
_FILES_AFTER = ("compact.files_written", "rewrite_position_deletes.files_written")
_ADDED_UP = ("bytes_freed", "files_before", "files_after", "requests_saved", "cost_usd")


def totals_of(passes: Sequence[Mapping[str, Any]]) -> dict[str, int | float]:
    """The number of passes, the number that did not succeed, and the sums of their columns."""
    bad = sum(document["status"] != "succeeded" for document in passes)
    return {
        "passes": len(passes),
        "failed": bad,
        **{key: round(sum(document[key] for document in passes), 9) for key in _ADDED_UP},
    }


# One listing of the bucket serves all its tables (rule: ask-neighbours-before-deleting).
def orphans(
    catalog: CatalogName,
    bucket: Annotated[
        str,
        typer.Option(
            "--bucket", metavar="BUCKET|LOCATION", help="a bucket's name, or the address of a warehouse or folder"
        ),
    ],
    settings: Settings = None,
    engine: Engine = EngineName.AUTO,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be removed, and change nothing")] = False,
    unsafe: Unsafe = False,
    as_json: AsJson = False,
) -> int:
    """Remove the orphans of all tables below a bucket or folder; report files that belong to no table."""
    from icekeeper.report.outcome import PassStatus, Status
    from icekeeper.report.terminal import print_bucket
    from icekeeper.runtime import Runtime

    chosen = overrides(settings)
    runtime = Runtime.open(catalog)
    with engine_and_progress(engine, as_json=as_json) as (started, progress):
        outcome = runtime.sweep_bucket(
            _address(bucket), chosen, started, dry_run=dry_run, unsafe=unsafe, progress=progress
        )
    if as_json:
        print_json(outcome.to_json(listings()))
    print_bucket(people(as_json=as_json), outcome)
    if outcome.status is PassStatus.SUCCEEDED:
        return EXIT_OK
    bad = [f"{name}: {o.reason}" for name, o in outcome.tables.items() if o.status in (Status.FAILED, Status.REFUSED)]
    return print_failed("; ".join(bad))


def _address(bucket: str) -> str:
    """Text without a slash is the name of an S3 bucket."""
    return bucket.rstrip("/") if "/" in bucket else f"s3://{bucket}"


def plan(
    catalog: CatalogName,
    tables: Tables = None,
    operations: Annotated[
        str | None,
        typer.Option("--operations", metavar="LIST|all", help="comma-separated; default: those that a pass would run"),
    ] = None,
    settings: Settings = None,
    engine: Engine = EngineName.AUTO,
    all_tables: AllTables = False,
    unsafe: Unsafe = False,
    save: SaveAs = None,
    as_json: AsJson = False,
) -> int:
    """Report what a pass would do and free, and what each branch, tag and snapshot costs; changes nothing.

    For several tables it reports only what their passes would do.
    """
    from icekeeper.report.outcome import PassStatus, in_turn, order_json, reclaimable_bytes
    from icekeeper.report.terminal import print_costs, print_outcome, trouble
    from icekeeper.runtime import Runtime

    chosen, runtime = overrides(settings, operations, unsafe=unsafe), Runtime.open(catalog)
    names = chosen_tables(runtime.catalog, tables, all_tables=all_tables)
    with engine_and_progress(engine, as_json=as_json) as (started, progress):

        def planned(name: TableName) -> tuple[SavedTable | None, PassOutcome]:
            more: dict[str, Any] = {"unsafe": unsafe, "progress": progress}
            if save is not None:
                return runtime.plan_to_save(name, chosen, started, **more)
            return None, runtime.maintain(
                name, chosen, started, dry_run=True, names_table=str(name) in (tables or ()), **more
            )

        if not names_one(tables):
            return plan_each(catalog, names, planned, save, as_json=as_json)
        name = names[0]
        saved, answers = planned(name)
        if save is not None and saved is not None:
            save_plan(save, [saved])
    outcome, costs = in_turn(answers), runtime.costs(name).to_json()
    reclaimable = reclaimable_bytes(outcome)
    if as_json:
        order = {"planned_anew": order_json(outcome.operations)}
        bounds = runtime.safety_bounds(name, chosen, listings(), unsafe=unsafe)
        found = {**order, "reclaimable_bytes": reclaimable, "costs": costs, "bounds": bounds}
        print_json({**outcome.to_json(listings()), **found})
    console = people(as_json=as_json)
    print_outcome(console, outcome)
    _print_work(console, outcome)
    print_costs(console, costs, reclaimable)
    if save is not None:
        console.print(f"saved; to do it within 24 hours: icekeeper apply {save}", soft_wrap=True)
    return EXIT_OK if outcome.status is PassStatus.SUCCEEDED else print_failed(trouble(outcome))


def _print_work(console: Console, outcome: PassOutcome) -> None:
    """Print the engine, the groups and the depth of a plan."""
    from icekeeper.report.terminal import print_sentence

    taken, reason = outcome.engine or ("", None)
    if reason is not None:
        print_sentence(console, f"engine: {taken}; {reason}")
    for operation in outcome.operations:
        for line in plan_lines(operation.plan or {}):
            print_sentence(console, line, indent=2)
    if (depth := outcome.metrics.get("compact.depth_before")) is not None:
        print_sentence(console, f"clustering depth: a lookup opens {depth:g} files on average")


request_app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, help="Ask the deployed stack for a pass over one table."
)


@request_app.command("add")
def request_add(
    table: Table,
    catalog: CatalogName,
    operations: Operations = None,
    settings: Settings = None,
    state_machine: Annotated[
        str | None,
        typer.Option(
            "--state-machine",
            metavar="ARN",
            envvar="ICEKEEPER_STATE_MACHINE",
            help="the stack's output StateMachineArn: start a run at once; default: the next scheduled run takes it",
        ),
    ] = None,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="TIME", help="wait at most this long, for example 90s, 30m or 6h")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="file the request, start the run, and return")] = False,
    as_json: AsJson = False,
) -> int:
    """Ask the deployed stack for a pass over one table, and wait for its result."""
    from icekeeper.pipeline.executions import StateMachine
    from icekeeper.pipeline.request_pass import (
        Waiting,
        await_pass,
        file_request,
        follow_pass,
        require_shared_state,
        start_pass,
    )
    from icekeeper.runtime import Runtime

    chosen, name = overrides(settings, operations), table_name(table)
    if no_wait and wait is not None:
        raise PolicyError("--wait and --no-wait exclude each other")
    limit_ms = None if wait is None else time_ms(wait, "--wait")
    scheduled = _is_scheduled()
    require_shared_state(os.environ, is_scheduled=scheduled)
    machine = StateMachine.open(state_machine, _profile()) if state_machine else None
    runtime = Runtime.open(catalog)
    filed = file_request(runtime, name, chosen)
    execution = None if machine is None else start_pass(machine, filed)
    answer = _at_first(execution, is_scheduled=scheduled)
    _say(name, answer, as_json)
    if no_wait or (machine is None and limit_ms is None):
        _document(filed, execution, answer, as_json)
        return EXIT_OK
    try:
        with waiting(f"{name}: {answer.summary}") as show:
            patience = Waiting(limit_ms=limit_ms, notify=lambda news: show(f"{name}: {news}"))
            if machine is not None and execution is not None:
                answer = follow_pass(machine, execution, runtime.state, filed, patience)
            else:
                answer = await_pass(runtime.state, filed, patience)
    except KeyboardInterrupt:
        goes_on = f"the request stays filed: {answer.summary}" if execution is None else f"the run goes on: {execution}"
        return print_interrupted(f"interrupted; {goes_on}", as_json=as_json)
    _say(name, answer, as_json)
    _document(filed, execution, answer, as_json)
    return EXIT_OK if answer.is_well else print_failed(f"{name}: {answer.status}: {answer.summary}")


def _profile() -> str | None:
    """The AWS profile in the state's address: the same stack owns the state table and the state machine."""
    from icekeeper.state.identity import parse_address

    address = parse_address(os.environ)
    return None if address is None else address.profile


def _is_scheduled() -> bool:
    from icekeeper.machine.clock import system_clock
    from icekeeper.state.leases import is_scheduled
    from icekeeper.state.open import open_state

    return is_scheduled(open_state(os.environ).leases, now_ms=system_clock())


def _at_first(execution: str | None, *, is_scheduled: bool) -> Answer:
    from icekeeper.pipeline.request_pass import NEXT_RUN, NO_RUN, Answer

    if execution is None:
        return Answer(status="requested", summary=NEXT_RUN if is_scheduled else NO_RUN)
    return Answer(status="running", summary=f"started as {execution}")


def _say(table: object, answer: Answer, as_json: bool) -> None:
    people(as_json=as_json).print(f"{table}: {answer.status}: {answer.summary}", soft_wrap=True)


def _document(filed: MaintenanceRequest, execution: str | None, answer: Answer, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "table": str(filed.identity.table),
                "catalog": filed.identity.catalog.name,
                "status": answer.status,
                "summary": answer.summary,
                "requested_ms": filed.requested_ms,
                "settings": dict(filed.settings),
                "execution": execution,
                "pass": None if answer.record is None else pass_json(answer.record),
            }
        )


@request_app.command("list")
def request_list(
    catalog: Annotated[
        str | None, typer.Option("--catalog", metavar="C", help="only requests that were filed under this catalog")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Print the requests that are pending, oldest first: the order in which runs take them."""
    from icekeeper.machine.clock import system_clock
    from icekeeper.state.leases import SEEN_FOR_HOURS, is_scheduled
    from icekeeper.state.open import open_state

    state = open_state(os.environ)
    pending = [
        request for request in state.requests.pending(notify) if catalog in (None, request.identity.catalog.name)
    ]
    scheduled = is_scheduled(state.leases, now_ms=system_clock())
    listed = [_request_json(request) for request in pending]
    document = {"catalog": catalog, "status": "succeeded", "scheduled": scheduled, "requests": listed}
    console = answer(document, as_json=as_json)
    for request in pending:
        console.print(_line(request), soft_wrap=True)
    if not pending:
        console.print("no request is pending", soft_wrap=True)
    elif not scheduled:
        console.print(f"no run has looked for requests here in the last {SEEN_FOR_HOURS} hours", soft_wrap=True)
    return EXIT_OK


@request_app.command("withdraw")
def request_withdraw(table: Table, catalog: CatalogName, as_json: AsJson = False) -> int:
    """Withdraw the request for a table; a pass that has started continues."""
    from icekeeper.administration.settings import withdraw_request
    from icekeeper.runtime import Runtime

    withdrawn = withdraw_request(Runtime.open(catalog).table(table_name(table)))
    about = {"table": table, "catalog": catalog, "status": "succeeded"}
    console = answer({**about, "withdrawn": _request_json(withdrawn)}, as_json=as_json)
    console.print(f"{table}: the request of {iso_utc(withdrawn.requested_ms)} is withdrawn", soft_wrap=True)
    return EXIT_OK


def _line(request: MaintenanceRequest) -> str:
    settings = " ".join(f"{key}={value}" for key, value in request.settings.items())
    found = request.identity
    return f"{iso_utc(request.requested_ms)} {found.catalog} {found.table} {settings}".rstrip()


def _request_json(request: MaintenanceRequest) -> dict[str, Any]:
    return {
        "table": str(request.identity.table),
        "catalog": request.identity.catalog.name,
        "requested_ms": request.requested_ms,
        "requested": iso_utc(request.requested_ms),
        "settings": dict(request.settings),
    }


_Interval: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--interval",
        metavar="TIME",
        help="time between two detections, for example 15m or 6h; default: detection_interval_s, or 1h",
    ),
]
_Concurrency: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        metavar="N",
        min=1,
        help="tables that this process maintains at once; default: the policy's value, or 2",
    ),
]

_Once: TypeAlias = Annotated[
    bool, typer.Option("--once", help="run one detection and its passes, then end; exit code 1 if something failed")
]
_VerifyInterval: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--verify-interval",
        metavar="TIME",
        help="also verify each table that was not verified for so long, such as 7d; reads all its manifests and lists "
        "all its files; default: never",
    ),
]


def run(
    catalogs: Catalogs,
    patterns: Patterns = None,
    interval: _Interval = None,
    concurrency: _Concurrency = None,
    operations: Operations = None,
    settings: Settings = None,
    engine: Engine = EngineName.AUTO,
    once: _Once = False,
    http: HttpPort = None,
    http_address: HttpAddress = None,
    http_page: HttpPage = False,
    verify_interval: _VerifyInterval = None,
) -> int:
    """Detect and maintain the tables of catalogs, every interval, until stopped (SIGTERM or Ctrl-C)."""
    from icekeeper.cycle.pass_process import PassProcesses
    from icekeeper.cycle.service import Service, run_line
    from icekeeper.policy.policy_file import check_patterns
    from icekeeper.runtime import open_engine
    from icekeeper.state.open import open_state

    chosen = overrides(settings, operations, about="icekeeper run", unsafe=False)
    check_patterns(patterns or ())
    if once and interval is not None:
        raise PolicyError("--once and --interval exclude each other")
    if once and http is not None:
        raise PolicyError("--once and --http exclude each other; icekeeper metrics and report write files")
    schedule = _of_process(interval, concurrency)
    console = people(as_json=False)

    def notify(line: str) -> None:
        console.print(line, soft_wrap=True)

    def tell_now(sentence: str) -> None:
        notify(run_line(system_clock(), sentence, os.environ))

    interval_s = float(schedule.get("detection_interval_s", HOUR_MS / 1000))
    with open_engine(engine):  # fails here rather than in each pass
        pass
    with (
        served_http(http, http_address, http_page, catalogs, interval_s, tell_now, scans_all=not patterns) as on,
        PassProcesses(engine, os.environ) as run_pass,
    ):
        service = Service(
            open_state(os.environ),
            run_pass,
            notify,
            catalogs=catalogs,
            patterns=patterns or (),
            environment=dict(os.environ),
            overrides=chosen,
            schedule=schedule,
            on_cycle=on.cycle,
            on_pass=on.ended_pass,
            verify_interval_ms=0 if verify_interval is None else time_ms(verify_interval, "--verify-interval"),
        )
        with _stopping(service.stop):
            is_well = service.run(once=once)
    return EXIT_OK if is_well else print_failed("some tables could not be read or maintained; see the lines above")


def _of_process(interval: str | None, concurrency: int | None) -> dict[str, str]:
    """The settings of the options, which apply to this process only."""
    settings: dict[str, str] = {}
    if interval is not None:
        settings["detection_interval_s"] = str(time_ms(interval, "--interval") // 1000)
    if concurrency is not None:
        settings["max_concurrent_jobs_per_worker"] = str(concurrency)
    return settings


def run_worker() -> None:
    """Run passes for ``icekeeper run``, which starts this command and ends it."""
    from icekeeper.cycle.pass_process import work

    work()


@contextmanager
def _stopping(stop: Callable[[], None]) -> Iterator[None]:
    """While the block runs, the first SIGTERM or SIGINT calls ``stop``; a second signal ends the process at once."""
    signals = (signal.SIGTERM, signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        for handled in signals:
            signal.signal(handled, signal.SIG_DFL)
        # In a thread: the interrupted code may hold a lock that ``stop`` needs.
        Thread(target=stop).start()

    before = {number: signal.signal(number, handle) for number in signals}
    try:
        yield
    finally:
        for handled, earlier in before.items():
            signal.signal(handled, earlier)


_MOST_LINES = 10
_SETTINGS = {"codec": "compression codec", "bloom": "Bloom filters", "sort_order": "sort order"}


def plan_lines(plan: Mapping[str, Any]) -> Iterator[str]:
    """Lines for people about one operation's plan: its groups with their reasons, and the files left alone.

    ``plan`` is the operation's document of ``plan --json``; an empty document yields no lines.
    """
    groups = plan.get("groups", ())
    for group in groups[:_MOST_LINES]:
        where = f" in {group['partition']}" if group["partition"] else ""
        deletes = f", {counted(group['delete_files'], 'delete file')} applied" if group["delete_files"] else ""
        yield f"{', '.join(group['reasons'])}{where}: {_change(group)}{deletes}"
    totals = plan.get("totals")
    if totals is not None and totals["groups"] > 1:
        more = f" ({totals['groups'] - _MOST_LINES} more not shown)" if totals["groups"] > _MOST_LINES else ""
        yield f"in all: {_change(totals)} in {counted(totals['groups'], 'group')}{more}"
    if totals is not None and totals["groups"]:
        yield (
            f"takes about {counted(totals['requests'], 'request')} and {usd_text(totals['cost_usd'])}; "
            f"saves readers about {usd_text(totals['saving_usd'])}{_by_what(plan.get('assumes'))}"
        )
    for lacking in plan.get("settings", ()):
        what, size = _SETTINGS[lacking["reason"]], size_text(lacking["bytes"])
        yield (
            f"{lacking['lacking']} of {counted(lacking['sampled'], 'sampled file')} lack the table's {what}: "
            f"{lacking['how']} would rewrite about {size} for {usd_text(lacking['cost_usd'])}"
        )
    for left in plan.get("left", ()):
        yield f"left alone: {counted(left['files'], 'file')} of {size_text(left['bytes'])}; {left['reason']}"


def _by_what(assumes: Mapping[str, Any] | None) -> str:
    """The assumptions behind the costs."""
    if assumes is None:
        return ""
    return f" in {counted(assumes['expected_scans'], 'scan')} (expected_scans), both at AWS's list prices, on any store"


def _change(group: Mapping[str, Any]) -> str:
    sizes = f"{size_text(group['bytes_in'])} in, {size_text(group['bytes_out'])} out"
    return f"{counted(group['files'], 'file')} into {group['outputs']}, {sizes}"
