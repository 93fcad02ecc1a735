"""Which allocator Arrow uses in every process that imports Icekeeper, and how it keeps what was freed (platform 63).

Arrow asks the environment once, when it is imported; so this is imported before anything else.
"""

from __future__ import annotations

import os
from collections.abc import Container, MutableMapping

__all__ = ["choose_allocator"]

_VARIABLE = "ARROW_DEFAULT_MEMORY_POOL"
_OPTIONS_VARIABLE = "JE_ARROW_MALLOC_CONF"
# Threads share what they have freed: by default there are four arenas a core, and none takes what another one keeps.
_OPTIONS = "narenas:2"


def choose_allocator(environment: MutableMapping[str, str], system_names: Container[str]) -> None:
    """Have Arrow use jemalloc, unless somebody chose, or Arrow's wheel has none and would complain.

    ``system_names`` are those of ``os.confstr``; only the GNU C library has a name of its own among them.
    """
    if "CS_GNU_LIBC_VERSION" in system_names:
        environment.setdefault(_VARIABLE, "jemalloc")
        environment.setdefault(_OPTIONS_VARIABLE, _OPTIONS)


choose_allocator(os.environ, getattr(os, "confstr_names", ()))
