"""How many cases of a property a run tries."""

from __future__ import annotations

import hypothesis

NIGHTLY = hypothesis.settings.get_current_profile_name() == "nightly"


def examples(usual: int) -> int:
    """``usual`` in every run; with ``make nightly``, the number of the profile."""
    return hypothesis.settings().max_examples if NIGHTLY else usual
