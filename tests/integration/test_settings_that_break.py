"""``icekeeper run`` reports each change of settings, of a catalog or of a listing once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from icekeeper.catalogs.catalog import Catalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.cycle.service import Service
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import PolicyError, StorageError
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.policy import Policy
from icekeeper.state.open import open_state
from support.command import CATALOG, Command, in_this_process

GOOD = (
    "rules:\n- settings:\n    min_input_files: {}\n    min_manifests_to_rewrite: 100\n    max_snapshots_to_keep: 100\n"
)
HOLD = "; until this is corrected, the last good settings apply"
SCANNED = " scanned, "
"""Part of the last line of a detection."""
DEADLINE_S = 60.0
"""For all cycles of a test."""


class Cycles:
    """A service that calls a function before each cycle but the first, and stops after the last cycle."""

    def __init__(self, opened: Callable[[str], Catalog] = open_catalog) -> None:
        self.lines: list[str] = []
        self._between: list[Callable[[], object]] = []
        self._service = Service(
            open_state(os.environ),
            in_this_process(LocalEngine(1), opened),
            self._report,
            catalogs=[CATALOG],
            environment=os.environ,
            open_catalog=opened,
        )

    def run(self, *between: Callable[[], object]) -> list[str]:
        """Run one detection more than there are functions; return the lines without times, or fail with them."""
        self._between, is_late = list(between), threading.Event()

        def end() -> None:
            is_late.set()
            self._service.stop()

        deadline = threading.Timer(DEADLINE_S, end)
        deadline.start()
        try:
            self._service.run()
        finally:
            deadline.cancel()
        assert not is_late.is_set(), f"no line has {SCANNED!r}: {self.lines[-50:]}"
        return self.lines

    def _report(self, line: str) -> None:
        self.lines.append(line.partition(" ")[2].partition(" in ")[0])
        if SCANNED in line:
            (self._between.pop(0) if self._between else self._service.stop)()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cycles follow each other without a pause."""
    read = Service._read_rules

    def without_pause(self: Service) -> tuple[TablePolicies, Policy]:
        policies, policy = read(self)
        return policies, policy.model_copy(update={"detection_interval_s": 0})

    monkeypatch.setattr(Service, "_read_rules", without_pause)


@pytest.fixture
def file(command: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A policy file under which the table needs work."""
    path = command.folder / "policy.yaml"
    path.write_text(GOOD.format(10))
    monkeypatch.setenv("ICEKEEPER_POLICY_FILE", str(path))
    return path


def test_a_broken_policy_file_is_reported_once_and_the_last_good_file_applies(command: Command, file: Path) -> None:
    """Six files need a pass under the default settings and under the last file, but not under the first file."""

    def restore() -> None:
        file.rmdir()
        file.write_text(GOOD.format(3))

    command.table()
    lines = Cycles().run(
        lambda: file.write_text("rules:\n- settings:\n    nope: 1\n"),
        lambda: None,
        lambda: file.write_text("rules: ["),
        file.unlink,
        file.mkdir,
        restore,
    )
    reported = [line.replace(str(file), "FILE") for line in lines if SCANNED not in line]
    assert reported[0].startswith("unknown policy key 'nope' (from policy file FILE rule 1 (*/*/*))")
    assert reported[1].startswith("policy file FILE: line 1: ")
    assert reported[2].startswith("policy file FILE does not exist (ICEKEEPER_POLICY_FILE names it)")
    assert reported[3].startswith("the policy file cannot be read: ")
    assert all(line.endswith(HOLD) for line in reported[:4])
    assert reported[4:] == ["the settings can be read again, and apply"]
    assert [line for line in lines if SCANNED in line] == ["1 table scanned, 0 need maintenance"] * 6 + [
        "1 table scanned, 1 needs maintenance"
    ]


def test_a_users_own_policy_file_that_disappears_applies_until_the_process_ends(command: Command) -> None:
    own = command.folder / "home" / ".config" / "icekeeper" / "icekeeper.yaml"
    own.parent.mkdir(parents=True, mode=0o700)
    own.write_text(GOOD.format(10))
    own.chmod(0o600)
    command.table()
    lines = Cycles().run(own.unlink)
    assert lines == [
        "1 table scanned, 0 need maintenance",
        f"policy file {own} does not exist any more{HOLD}",
        "1 table scanned, 0 need maintenance",
    ]


def test_a_catalog_whose_configuration_breaks_stays_open(command: Command) -> None:
    """A catalog that does not answer is reported by every detection."""
    command.table(appends=1)
    problems: list[Exception | None] = [None, None, PolicyError("bad"), PolicyError("bad"), StorageError("gone"), None]

    def opened(name: str) -> Catalog:
        problem = problems.pop(0)
        if problem is not None:
            raise problem
        return open_catalog(name)

    lines = Cycles(opened).run(*[lambda: None] * 4)
    scanned = "1 table scanned, 0 need maintenance"
    assert lines == [
        scanned,
        f"bad{HOLD}",
        scanned,
        scanned,
        "C * failed: the catalog cannot be scanned: gone",
        "0 tables scanned, 0 need maintenance",
        "the settings can be read again, and apply",
        scanned,
    ]


def test_a_catalog_is_reported_when_it_becomes_empty(command: Command) -> None:
    """Not by every detection, but each time that it becomes empty."""
    lines = Cycles().run(lambda: None, lambda: command.table(appends=1), lambda: command.catalog.drop_table("ns.t"))
    empty = (
        f"catalog {CATALOG} lists no tables; if it has any, the right to list them is missing, such as an AWS Lake "
        "Formation grant"
    )
    scanned = [f"{count} scanned, 0 need maintenance" for count in ("0 tables", "1 table")]
    assert lines == [empty, scanned[0], scanned[0], scanned[1], empty, scanned[0]]
