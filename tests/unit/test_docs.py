"""The documentation says what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from icekeeper.deletion.file_needs import GC_DISABLED
from icekeeper.operations.compaction.plan_groups import DELETES_DISABLED, NO_SNAPSHOT, NOTHING_ELIGIBLE
from icekeeper.operations.expiry.retention import NOTHING_TO_EXPIRE
from icekeeper.operations.manifests.plan_manifests import NO_ENTRIES
from icekeeper.operations.old_partitions import NO_RETENTION
from icekeeper.operations.old_partitions import NOTHING_TO_EXPIRE as NO_PARTITIONS
from icekeeper.operations.position_deletes import plan_merges as position_deletes
from icekeeper.operations.statistics import plan_statistics as statistics
from icekeeper.policy import Operation
from icekeeper.policy.ownership import OWNED, OWNED_FOR_ALL_TABLES
from icekeeper.policy.partition_time import NO_TIME_FIELD
from icekeeper.verification.checks import REMEDIES, ProblemKind

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_policy_page_is_what_the_model_says() -> None:
    script = [sys.executable, str(ROOT / "docs" / "generate_policy.py")]
    rendered = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs" / "policy.md").read_text() == rendered


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_metric_is_on_the_page_of_its_operation() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    sections = {section.split("\n", 1)[0]: section for section in page.split("\n## ")[1:]}
    assert tuple(sections) == tuple(operation.value for operation in Operation)
    sources = (ROOT / "layers" / "icekeeper" / "src" / "icekeeper" / "operations").rglob("*.py")
    code = "".join(path.read_text() for path in sources)
    for name, section in sections.items():
        keys = set(re.findall(rf'"{name}\.(\w+)"', code))
        assert keys
        assert {key for key in keys if f"`{key}`" not in section} == set()
        listed = section.partition("Metrics: ")[2].partition(".")[0]
        assert set(re.findall(r"`(\w+)`", listed)) == keys


def test_what_to_do_about_damage_is_said_by_verify_and_on_the_page() -> None:
    """An installation brings no page, so the command says it itself."""
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", (ROOT / "docs" / "recovery.md").read_text(), re.MULTILINE)
    assert dict(rows) == {kind.value: REMEDIES[kind] for kind in ProblemKind}


def test_every_metric_of_staged_files_is_on_their_page() -> None:
    page = (ROOT / "docs" / "pins-and-loads.md").read_text()
    source = ROOT / "layers" / "icekeeper" / "src" / "icekeeper" / "operations" / "clean_staging.py"
    keys = set(re.findall(r'"(staged\.\w+)"', source.read_text()))
    assert set(re.findall(r"`(staged\.\w+)`", page)) == keys


def test_every_reason_of_a_constant_is_on_the_page() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    reasons = [NOTHING_ELIGIBLE, DELETES_DISABLED, NOTHING_TO_EXPIRE, GC_DISABLED, NO_SNAPSHOT, NO_ENTRIES]
    reasons += [NO_RETENTION, NO_TIME_FIELD, NO_PARTITIONS, position_deletes.NOTHING_ELIGIBLE]
    reasons += [OWNED, OWNED_FOR_ALL_TABLES]
    reasons += [statistics.NO_COLUMNS, statistics.UP_TO_DATE]
    assert [reason for reason in reasons if reason not in page] == []
