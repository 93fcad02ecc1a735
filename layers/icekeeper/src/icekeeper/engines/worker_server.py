"""The first import of the process that workers are forked from: what keeps it at one thread, and its forks small
(platform: forked-workers-start-cheap).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from multiprocessing import spawn
from typing import Any

_OPTIONS = os.environ.get("JE_ARROW_MALLOC_CONF", "")
# Arrow's jemalloc would start a thread as soon as Arrow is imported, whether Arrow allocates by it or not.
if "background_thread" not in _OPTIONS:
    os.environ["JE_ARROW_MALLOC_CONF"] = ",".join(filter(None, (_OPTIONS, "background_thread:false")))

_prepare = spawn.prepare
_MAIN_MODULE = frozenset({"init_main_from_name", "init_main_from_path"})


def _prepare_without_main(data: Mapping[str, Any]) -> None:
    """Prepare a worker as ever, but do not import the main module of the process that has started the server.

    Each worker would, and with it whatever somebody else's program has there; one without a guard would begin once more
    in the worker.  No work of ours is in a main module.
    """
    _prepare({key: value for key, value in data.items() if key not in _MAIN_MODULE})


spawn.prepare = _prepare_without_main
