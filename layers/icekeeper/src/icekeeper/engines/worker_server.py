"""The first import of the process that workers are forked from: what keeps it at one thread (platform 51)."""

from __future__ import annotations

import os

__all__: list[str] = []

# Arrow's jemalloc would start a thread as soon as Arrow is imported, whether Arrow allocates by it or not.
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
