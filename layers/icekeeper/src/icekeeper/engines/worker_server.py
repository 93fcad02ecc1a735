"""The first import of the process that workers are forked from: what keeps it at one thread (platform 51)."""

from __future__ import annotations

import os

__all__: list[str] = []

_OPTIONS = os.environ.get("JE_ARROW_MALLOC_CONF", "")
# Arrow's jemalloc would start a thread as soon as Arrow is imported, whether Arrow allocates by it or not.
if "background_thread" not in _OPTIONS:
    os.environ["JE_ARROW_MALLOC_CONF"] = ",".join(filter(None, (_OPTIONS, "background_thread:false")))
