"""Print outcomes, proposals, problems, and policies as tables for people.

The caller creates the console, for standard error if standard output has JSON.  Colours appear only on a terminal.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from icekeeper.health.table_state import DAMAGE, verified_text
from icekeeper.machine.clock import iso_utc
from icekeeper.report.outcome import (
    BucketOutcome,
    PassOutcome,
    PassStatus,
    Status,
    freed_sentence,
    in_plain_words,
    in_turn,
    lines_of,
    order_sentence,
    replanned_sentence,
    without_repeats,
)
from icekeeper.state.store import UNTIL_REMOVED_MS
from icekeeper.text import counted, size_text, usd_text

_SHOWN = 3


def next_run_lines(next_run: Mapping[str, Any], scanned: int) -> Iterator[str]:
    """Lines about ``next_run`` of ``detect --json``; none if no table begins, waits or is filtered out."""
    begins, waits, at_work = next_run["begins"], next_run["waits"], next_run["at_work"]
    limit = next_run["limits"]["max_concurrent_jobs"]
    named_limit = f"max_concurrent_jobs {limit['value']} ({limit['source']})"
    if at_work:
        yield f"scheduled runs maintain {counted(at_work, 'table')} now, of {named_limit}"
    if begins:
        verb = "waits" if len(waits) == 1 else "wait"
        more = f"; {len(waits)} more {verb} for a pass to end: {named_limit}" if waits else ""
        yield f"a scheduled run would begin with {_names(begins)}{more}"
    elif waits:
        waiting = counted(len(waits), "table")
        yield f"a scheduled run would begin with no table now: {waiting} would wait for a pass to end"
    if next_run["filters"] and scanned:
        filters = (f"{key} {','.join(f['value'])} ({f['source']})" for key, f in next_run["filters"].items())
        yield f"other tables are left out by {', '.join(filters)}"


def _names(tables: Sequence[str]) -> str:
    more = f" and {len(tables) - _SHOWN} more" if len(tables) > _SHOWN else ""
    return ", ".join(tables[:_SHOWN]) + more


_GAP = 2
# If the last column would be narrower, it begins on a new line.
_NARROWEST = 30
_WIDEST = 200
# The width of columns that are cut.
_LEAST = 20
_INDENT = 4


def print_rows(console: Console, rows: Sequence[Sequence[Text]], if_none: str = "", *, one_line: bool = False) -> None:
    """Print aligned columns; without rows, the sentence ``if_none``.

    On a terminal, the last column is wrapped between words; elsewhere a row is one line.  With ``one_line`` it is one
    line there too: the last column is cut, and the first one if that leaves too little of the last.  Otherwise a word
    such as a path is never broken, so that it can be copied.  The cells are Text objects, because brackets in a path or
    name must not be interpreted as markup.
    """
    if if_none and not rows:
        console.print(Text(if_none, style="dim"))
    # One very long name must not pad all other lines.
    widths = [min(_WIDEST, max(cell.cell_len for cell in column)) for column in zip(*rows, strict=True)][:-1]
    if one_line and console.is_terminal:
        room = console.width - sum(widths[1:]) - _GAP * len(widths)
        widths[0] = min(widths[0], max(_LEAST, room - _LEAST))
        for first, *_, last in rows:
            _cut(first, widths[0])
            last.truncate(max(_LEAST, room - widths[0]), overflow="ellipsis")
    indent = sum(widths) + _GAP * len(widths)
    room = console.width - indent
    for row in rows:
        for cell, width in zip(row[:-1], widths, strict=True):
            cell.pad_right(max(0, width - cell.cell_len))
        first, last = Text("  ").join(row[:-1]), row[-1]
        if not console.is_terminal or last.cell_len <= room:
            line = Text("  ").join(row)
            line.rstrip()
            console.print(line, soft_wrap=True)
        elif room >= _NARROWEST:
            _print_below(console, last, indent, Text("  ").join([*row[:-1], Text()]))
        else:
            console.print(first, soft_wrap=True)
            _print_below(console, last, _INDENT, Text(" " * _INDENT))


def print_sentence(console: Console, sentence: str, style: str = "", indent: int = 0) -> None:
    """Print a sentence, on a terminal in lines that are wrapped between words and indented below the first."""
    first = Text(" " * indent)
    if console.is_terminal:
        _print_below(console, Text(sentence, style), indent + _GAP if indent else 0, first)
    else:
        console.print(first + Text(sentence, style), soft_wrap=True)


def _cut(text: Text, width: int) -> None:
    """Replace the middle of a longer text by an ellipsis."""
    if text.cell_len > width:
        text.plain = f"{text.plain[: width // 2]}…{text.plain[len(text) - (width - width // 2 - 1) :]}"


def _print_after(console: Console, begin: Text, sentence: str, style: str = "") -> None:
    """Print a sentence on the line that begins so; on a terminal it is wrapped between words, and then indented."""
    if not console.is_terminal:
        console.print(begin + Text(sentence, style), soft_wrap=True)
        return
    wrapped = textwrap.wrap(
        sentence,
        console.width,
        initial_indent=" " * begin.cell_len,
        subsequent_indent=" " * _INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    first, *others = wrapped or [" " * begin.cell_len]
    console.print(begin + Text(first[begin.cell_len :], style), soft_wrap=True)
    for line in others:
        console.print(Text(line, style), soft_wrap=True)


def _print_below(console: Console, text: Text, indent: int, begin: Text) -> None:
    """Print a text in lines of the console's width, the first after ``begin``; only a longer word exceeds it.

    Each line is printed separately, because the command's console escapes line breaks (rule: escape-at-the-edge).
    """
    for line in textwrap.wrap(text.plain, console.width - indent, break_long_words=False, break_on_hyphens=False):
        console.print(begin + Text(line, text.style), soft_wrap=True)
        begin = Text(" " * indent)


def print_policy(console: Console, rows: Iterable[Sequence[str]], ignored: Iterable[str] = ()) -> None:
    """Print rows of ``(key, value, source, meaning)``, then sentences about the table's settings that are ignored.

    Values other than defaults are bold.  On a terminal, the meaning is below its key; elsewhere each key is one line.
    """
    if console.is_terminal:
        for key, value, source, meaning in rows:
            setting = f"{key} = {value.replace(',', ', ')}  ({source})"
            _print_after(console, Text(), setting, "" if source == "default" else "bold")
            _print_below(console, Text(meaning, "dim"), _INDENT, Text(" " * _INDENT))
        for sentence in ignored:
            console.print(Text(sentence, "bold"))
        return
    if found := [[Text(cell) for cell in row] for row in rows]:
        print_rows(console, [[Text(heading) for heading in ("key", "value", "source", "meaning")], *found])
    for sentence in ignored:
        console.print(Text(sentence), soft_wrap=True)


_STYLES: Mapping[str, str] = {
    "succeeded": "green",
    "skipped": "dim",
    "partial": "yellow",
    "refused": "yellow",
    "failed": "red",
}


def _status_text(status: Status | PassStatus, *, dry_run: bool) -> Text:
    is_planned = dry_run and status.value == "succeeded"
    return Text("planned" if is_planned else status.value, style=_STYLES[status.value])


def _print_status(console: Console, name: str, outcome: PassOutcome | BucketOutcome) -> None:
    mode = " (dry run: nothing was changed)" if outcome.dry_run else ""
    console.print(Text.assemble((name, "bold"), ": ", _status_text(outcome.status, dry_run=outcome.dry_run), mode))


def print_outcome(console: Console, outcome: PassOutcome) -> None:
    """Print one line per operation: name, status, and sentence; repeated sentences are abbreviated."""
    outcome = in_turn(outcome)
    _print_status(console, outcome.table, outcome)
    names = [part.operation.value for part in outcome.operations]
    sentences = without_repeats(names, [part.summary for part in outcome.operations])
    rows = zip(names, outcome.operations, sentences, strict=True)
    print_rows(
        console,
        [
            (Text(name), _status_text(part.status, dry_run=outcome.dry_run), Text(sentence))
            for name, part, sentence in rows
        ],
    )
    orders = (order_sentence(outcome.operations), replanned_sentence(outcome.operations)) if outcome.dry_run else ()
    for order in filter(None, orders):
        print_sentence(console, order, "dim")
    if (freed := freed_sentence(outcome)) is not None:
        console.print(Text(freed), soft_wrap=True)
    if outcome.staged is not None and outcome.staged.problem is None:
        console.print(Text(f"staged files: {outcome.staged.summary}"), soft_wrap=True)
    print_warnings(console, outcome.warnings)


def print_line(console: Console, table: str, status: PassStatus, sentence: str, *, dry_run: bool = False) -> None:
    """Print one line about one of several tables."""
    begin = Text.assemble((table, "bold"), "  ", _status_text(status, dry_run=dry_run), "  ")
    _print_after(console, begin, in_plain_words(sentence))


def changes_sentence(outcome: PassOutcome) -> str:
    """What the operations of a pass did, without those that were skipped."""
    done = [operation.summary for operation in in_turn(outcome).operations if operation.status is not Status.SKIPPED]
    return "; ".join(done) or "nothing to do"


def print_warnings(console: Console, warnings: Sequence[str]) -> None:
    """Print each warning on its own line."""
    for warning in warnings:
        console.print(Text.assemble(("warning: ", "yellow"), warning), soft_wrap=True)


def print_bucket(console: Console, outcome: BucketOutcome) -> None:
    """Print one line per table, then the files that belong to no table, and the foreign tables."""
    _print_status(console, outcome.bucket, outcome)
    rows, above = [], ""
    for name, table in outcome.tables.items():
        sentence = "as above" if table.summary == above else in_plain_words(table.summary)
        rows.append((Text(name), _status_text(table.status, dry_run=outcome.dry_run), Text(sentence)))
        above = table.summary
    print_rows(console, rows)
    if (freed := freed_sentence(outcome)) is not None:
        console.print(Text(freed), soft_wrap=True)
    outside = outcome.outside
    if outside["files"]:
        first = f", for example {outside['first'][0]}"
        amount = f"{counted(outside['files'], 'file')}, {size_text(outside['bytes'])}"
        line = f"  outside all tables: {amount}, left alone{first}"
        console.print(Text(line), soft_wrap=True)
    for found in outcome.foreign:
        named = f"table {found['uuid']} at {found['location']}"
        what = named if found["location"] else "metadata that cannot be read"
        line = f"  not in catalog {outcome.catalog}: {what}, by {found['metadata_file']}"
        console.print(Text(line, style="yellow"), soft_wrap=True)
    print_warnings(console, outcome.warnings)


def trouble(outcome: PassOutcome) -> str:
    """A sentence about the operations that failed or were refused; a shared reason appears once."""
    ended: dict[str, list[str]] = {}
    for operation in outcome.operations:
        if operation.status in (Status.FAILED, Status.REFUSED):
            names = ended.setdefault(operation.reason or operation.summary, [])
            names.append(f"{operation.operation.value} {operation.status.value}")
    reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in ended.items())
    return in_plain_words(f"{outcome.table}: {reasons}")


def print_detection(console: Console, report: Mapping[str, Any], *, show_all: bool) -> None:
    """Print the document of ``detect --json``: the tables that need work, most urgent first, and those that could not
    be read or have a warning; with ``show_all``, all others too."""
    proposals = report["proposals"]
    left_out = [entry for entry in report["skipped"] if show_all or "error" in entry or "warning" in entry]
    beyond = report.get("beyond_limit", 0)
    needy = len(proposals) + beyond
    verdict = f"{counted(report['scanned'], 'table')} scanned, {needy} {'needs' if needy == 1 else 'need'} work"
    console.print(Text(f"{verdict}, {beyond} of them beyond max_jobs_per_detection" if beyond else verdict))
    if report.get("note"):
        console.print(Text(report["note"], style="yellow"), soft_wrap=True)
    rows = [
        (
            Text(found["table"], style="bold"),
            Text(f"priority {found['priority']:.2f}"),
            Text("; ".join(found["reasons"])) + _warning_text(found),
        )
        for found in proposals
    ]
    rows += [
        (Text(entry["table"], style=style), Text(), Text(entry["reason"], style=style) + _warning_text(entry))
        for entry in left_out
        for style in ("red" if "error" in entry else "dim",)
    ]
    print_rows(console, rows)
    for line in next_run_lines(report["next_run"], report["scanned"]) if "next_run" in report else ():
        print_sentence(console, line, "dim")


def _warning_text(found: Mapping[str, Any]) -> Text:
    return Text(f"; {found['warning']}", style="yellow") if "warning" in found else Text()


def print_health(console: Console, health: Mapping[str, Any]) -> None:
    """Print the document of ``health --json``: verdict, warnings, counters, settings other than defaults."""
    warnings = health["warnings"]
    verdict = Text(counted(len(warnings), "warning"), style="yellow") if warnings else Text("healthy", style="green")
    verified = verified_text(health["verified_ms"], health["observed_ms"])
    console.print(Text.assemble((health["table"], "bold"), ": ", verdict, f", {verified}"))
    for warning in warnings:
        style = "red" if warning["kind"] in DAMAGE else "yellow"
        console.print(Text.assemble("  ", (warning["kind"], style), f": {warning['message']}"), soft_wrap=True)
    shown = [
        (name.removeprefix("lake_").replace("_", " "), size_text(value) if name.endswith("bytes") else str(value))
        for name, value in health["counters"].items()
    ]
    settings = [(key, _setting_text(value), "policy") for key, value in health["policy"].items()]
    rows = [(name, value, "") for name, value in shown] + settings
    print_rows(console, [(Text(f"  {name}"), Text(value), Text(kind, style="dim")) for name, value, kind in rows])


def print_problems(console: Console, report: Mapping[str, Any]) -> None:
    """Print the document of ``verify --json``: what was checked, what is damaged, and what to do about it."""
    looked_at = report["checked"].items()
    checked = ", ".join(counted(count, what.removesuffix("s").replace("_", " ")) for what, count in looked_at)
    verdict = Text("ok", style="green") if report["ok"] else Text("damaged", style="red")
    console.print(Text.assemble((report["table"], "bold"), ": ", verdict, f" ({checked})"))
    for problem in report["problems"]:
        path = f" {problem['path']}" if problem.get("path") else ""
        # Never wrapped, so that a path can be copied.
        line = Text.assemble("  ", (problem["kind"], "red"), f"{path}: {problem['detail']}")
        console.print(line, soft_wrap=True)
    for why in report.get("unread", {}).values():
        console.print(Text.assemble("  ", ("not read", "yellow"), f": {why}"), soft_wrap=True)
    if old := report["superseded"]:
        console.print(f"  {counted(old, 'problem')} of snapshots from before a repair alone", soft_wrap=True)
    for kind, remedy in report.get("remedies", {}).items():
        console.print(Text.assemble("what to do about ", (kind, "red"), f": {remedy}"), soft_wrap=True)


def print_repair(console: Console, report: Mapping[str, Any]) -> None:
    """Print the document of ``repair --json``: what would be mended, what is left, and what old snapshots keep."""
    console.print(Text.assemble((report["table"], "bold"), f": {report['summary']}"), soft_wrap=True)
    for mend in report["mends"]:
        rows = [f"{counted(mend['rows_lost'], 'row')} lost"] if mend["rows_lost"] else []
        if mend["rows_back"] != 0:
            known = "rows" if mend["rows_back"] is None else counted(mend["rows_back"], "row")
            rows.append(f"{known} reappear")
        line = Text.assemble(
            "  ", (mend["kind"], "green"), f": {mend['detail']}", f" ({', '.join(rows)})" if rows else ""
        )
        console.print(line, soft_wrap=True)
    for left in report["unmended"]:
        what = "left" if left["option"] is None else f"needs {left['option']}"
        console.print(Text.assemble("  ", (left["kind"], "red"), f" {what}: {left['detail']}"), soft_wrap=True)
    for snapshot in report["retained"]:
        console.print(f"  snapshot {snapshot['snapshot_id']} is immutable: {snapshot['state']}", soft_wrap=True)


def print_costs(console: Console, costs: Mapping[str, Any], reclaimable: int | float) -> None:
    """Print the costs of ``plan --json``: the bytes that only one branch or tag holds, the largest first."""
    line = f"reclaimable: {size_text(reclaimable)} of the {size_text(costs['bytes'])} that its snapshots hold"
    console.print(Text(line), soft_wrap=True)
    rows = [
        (
            Text(ref["name"], style="bold"),
            Text(ref["type"]),
            Text(f"{counted(ref['snapshots'], 'snapshot')}, {size_text(ref['bytes_only_here'])} held by nothing else"),
        )
        for ref in costs["refs"]
    ]
    if costs["bytes_without_ref"]:
        rows.append((Text("none", style="dim"), Text("ref"), Text(f"{size_text(costs['bytes_without_ref'])} held")))
    print_rows(console, rows)


def print_pins(console: Console, pins: Sequence[Mapping[str, Any]]) -> None:
    """Print the pins of ``pin list --json``: name, kind, snapshot and end."""
    rows = []
    for pin in pins:
        tag = f", also as tag {pin['tag']}" if pin["tag"] else ""
        until = "it is removed" if pin["expires_ms"] == UNTIL_REMOVED_MS else pin["expires"]
        held = f"snapshot {pin['snapshot_id']} until {until}{tag}"
        rows.append((Text(pin["name"], style="bold"), Text(pin["kind"]), Text(held)))
    print_rows(console, rows, "no pin holds this table")


def _changes(past: Mapping[str, Any]) -> Sequence[str]:
    """The lines of a pass; of one that succeeded, those of operations that changed something, if any did."""
    lines = lines_of(past["summary"])
    if past["status"] != "succeeded":
        return lines
    counts = (key for key, value in past["metrics"].items() if value and not key.endswith(".duration_ms"))
    changed = {key.partition(".")[0] for key in counts}
    return [line for line in lines if line.partition(":")[0] in changed] or lines


def print_passes(
    console: Console, passes: Sequence[Mapping[str, Any]], totals: Mapping[str, int | float], *, is_of_fleet: bool
) -> None:
    """Print the passes of ``history --json``: begin, duration, status, table, effect, operations; and their totals."""
    rows = []
    for past in passes:
        began = Text(iso_utc(past["started_ms"]), style="bold")
        status = Text(past["status"], style=_STYLES.get(past["status"], ""))
        named = [Text(f"{past['catalog']} {past['table']}")] if is_of_fleet else []
        took = Text(f"{past['duration_ms'] / 1000:.1f} s")
        lines = _changes(past) if is_of_fleet else lines_of(past["summary"])
        rows.append((began, took, status, *named, Text("; ".join((_effect(past), *lines)))))
    none = "no pass is recorded in this period" if is_of_fleet else "no pass that changed something is recorded"
    print_rows(console, rows, none)
    if passes:
        bad = f", {totals['failed']} not succeeded" if totals["failed"] else ""
        print_sentence(console, f"{counted(int(totals['passes']), 'pass', 'passes')}{bad}: {_effect(totals)}")


def _effect(document: Mapping[str, Any]) -> str:
    """What a pass freed and merged; saved requests are those of one scan that reads all the merged files."""
    parts = [f"{size_text(document['bytes_freed'])} freed"] if document["bytes_freed"] else []
    if document["files_before"]:
        files = f"{document['files_before']} → {counted(document['files_after'], 'file')}"
        parts.append(f"{files}, {counted(document['requests_saved'], 'request')} fewer per full scan")
        parts.append(f"estimated cost {usd_text(document['cost_usd'])}")
    return ", ".join(parts) or "nothing freed"


def print_claims(console: Console, claims: Sequence[Mapping[str, Any]]) -> None:
    """Print the entries of ``claims list --json``: catalog, table, and the folders of its files."""
    rows = []
    for claim in claims:
        places = ", ".join((claim["location"], *claim["folders"]))
        where = f"of warehouse {claim['warehouse']}, {f'in {places}' if places else 'excluded until it can be read'}"
        rows.append((Text(claim["catalog"]), Text(claim["table"], style="bold"), Text(where)))
    print_rows(console, rows, "no other table was seen to have files there")


def print_loads(console: Console, loads: Sequence[Mapping[str, Any]]) -> None:
    """Print the loads of ``stage list --json``: name, state, files and time."""
    rows = []
    for load in loads:
        prefixes = "".join(f", {prefix}" for prefix in load["prefixes"])
        of_job = " of a job" if load["origin"] == "job" else ""
        held = f"{counted(load['files'], 'file')}{of_job}{prefixes}, since {load['changed']}"
        rows.append((Text(load["name"], style="bold"), Text(load["state"]), Text(held)))
    print_rows(console, rows, "no staged load is recorded for this table")


def print_changes(console: Console, table: str, changes: Sequence[Mapping[str, Any]]) -> None:
    """Print the changes of ``policy set --json``: old and new value of each key."""
    if not changes:
        console.print(Text.assemble((table, "bold"), ": nothing changed, it already had these settings"))
    for change in changes:
        before, after = (_setting_text(change[side]) for side in ("before", "after"))
        _print_after(console, Text.assemble((table, "bold"), ": "), f"{change['key']}: {before} → {after}")


def _setting_text(setting: Mapping[str, Any] | None) -> str:
    return "not set" if setting is None else f"{_value_text(setting['value'])} ({setting['source']})"


def _value_text(value: object) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
