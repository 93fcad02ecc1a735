"""How often Python looks for garbage that refers to itself.

By default it looks through what is new after every 700 objects, and through everything each time that has grown by a
quarter.  A pass makes millions of entries of manifests that live on and hold no cycles: looking took a tenth of its
CPU.
"""

from __future__ import annotations

import gc

__all__ = ["search_cycles_seldom"]

_NEW_OBJECTS = 50_000


def search_cycles_seldom() -> None:
    """Look after every 50,000 new objects, in this process and from now on; a limit that is higher, or 0, stays."""
    new, *others = gc.get_threshold()
    if 0 < new < _NEW_OBJECTS:
        gc.set_threshold(_NEW_OBJECTS, *others)
