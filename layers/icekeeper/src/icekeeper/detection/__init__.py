"""Which tables need maintenance, found from metadata alone."""

from __future__ import annotations

from icekeeper.detection.assess import assess
from icekeeper.detection.assessor import assessor
from icekeeper.detection.proposal import DetectionReport, Proposal, Skip
from icekeeper.detection.scan import scan

__all__ = ["DetectionReport", "Proposal", "Skip", "assess", "assessor", "scan"]
