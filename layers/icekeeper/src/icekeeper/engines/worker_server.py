"""The first import of the process that workers are forked from: what keeps it at one thread, and its forks small
(platform 51)."""

from __future__ import annotations

import os
from multiprocessing import spawn

__all__: list[str] = []

_OPTIONS = os.environ.get("JE_ARROW_MALLOC_CONF", "")
# Arrow's jemalloc would start a thread as soon as Arrow is imported, whether Arrow allocates by it or not.
if "background_thread" not in _OPTIONS:
    os.environ["JE_ARROW_MALLOC_CONF"] = ",".join(filter(None, (_OPTIONS, "background_thread:false")))

# Each worker would import the main module of the process that started the server, and with it whatever a program of
# somebody else's has there; a script without a guard would begin once more in it.  The work is none of a main module's.
spawn._fixup_main_from_name = spawn._fixup_main_from_path = lambda main: None  # type: ignore[attr-defined]  # private
