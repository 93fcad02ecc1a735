"""What fits into the payloads of the state machine, of which each holds 256 KB (platform 12).  Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping

from icekeeper.state.requests import MAX_SETTINGS

__all__ = ["fits_payloads"]


def fits_payloads(settings: Mapping[str, str]) -> bool:
    """Whether these settings of a table leave enough room in the payloads of its states, each of which repeats them.

    A single item that is too long ends the whole Distributed Map, and so every run that proposes it.
    """
    return len(json.dumps(dict(settings))) <= MAX_SETTINGS
