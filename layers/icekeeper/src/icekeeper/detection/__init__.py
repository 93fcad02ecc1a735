"""Which tables need maintenance, found from metadata alone (rule 57)."""

from __future__ import annotations

from icekeeper.detection.assess import assess
from icekeeper.detection.assessor import assessor
from icekeeper.detection.fleet import scan_fleet
from icekeeper.detection.fleet_catalogs import CatalogSource
from icekeeper.detection.proposal import DetectionReport, FleetProposal, FleetReport, FleetSkip, Proposal, Skip
from icekeeper.detection.scan import scan

__all__ = [
    "CatalogSource",
    "DetectionReport",
    "FleetProposal",
    "FleetReport",
    "FleetSkip",
    "Proposal",
    "Skip",
    "assess",
    "assessor",
    "scan",
    "scan_fleet",
]
