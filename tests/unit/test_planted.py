"""The planted faults still fit the code: each replaces a piece that stands there once, and names tests that exist."""

from __future__ import annotations

from artifacts.pins import ROOT
from planted.faults import FAULTS


def test_faults_fit() -> None:
    package = ROOT / "layers/icekeeper/src/icekeeper"
    assert [fault.name for fault in FAULTS if (package / fault.file).read_text().count(fault.code) != 1] == []
    assert [path for fault in FAULTS for path in fault.tests if not (ROOT / path).is_file()] == []
