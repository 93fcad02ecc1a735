"""Mends what `verify` finds, and sets branches back: `icekeeper repair` and `icekeeper rollback`."""
