"""The first import of the server process of workers: keeps it at one thread, and its forks small."""

from __future__ import annotations

import os
from collections.abc import Mapping
from multiprocessing import spawn
from typing import Any

_OPTIONS = os.environ.get("JE_ARROW_MALLOC_CONF", "")
# Arrow's jemalloc starts a thread when Arrow is imported, even if Arrow does not allocate with it.
if "background_thread" not in _OPTIONS:
    os.environ["JE_ARROW_MALLOC_CONF"] = ",".join(filter(None, (_OPTIONS, "background_thread:false")))

_prepare = spawn.prepare
_MAIN_MODULE = frozenset({"init_main_from_name", "init_main_from_path"})


def _prepare_without_main(data: Mapping[str, Any]) -> None:
    """Prepare a worker without importing the main module of the parent process.

    That may be any program's; without a ``__main__`` guard, it would run again in each worker.  Tasks never need it.
    """
    _prepare({key: value for key, value in data.items() if key not in _MAIN_MODULE})


spawn.prepare = _prepare_without_main
