"""A function that takes longer than it may."""

import threading
from typing import Any


def handle(event: Any, context: Any) -> None:
    threading.Event().wait(context.get_remaining_time_in_millis() / 1000 + 0.5)
