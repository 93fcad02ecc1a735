"""How many cases of a property a run tries, and what only ``make nightly`` tries."""

from __future__ import annotations

import hypothesis
import pytest

NIGHTLY = hypothesis.settings.get_current_profile_name() == "nightly"
in_nightly = pytest.mark.skipif(not NIGHTLY, reason="seconds of CPU: make nightly")


def examples(usual: int) -> int:
    """``usual`` in every run; with ``make nightly``, the number of the profile."""
    return hypothesis.settings().max_examples if NIGHTLY else usual
