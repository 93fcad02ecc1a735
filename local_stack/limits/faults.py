"""What AWS does at times, where a test asks for it: throttles, and answers that are lost after the work was done.

Sources: Amazon S3 user guide, "Performance design patterns" (503 SlowDown); Amazon DynamoDB developer guide, "Error
handling" (ThrottlingException); AWS Glue Web API reference, "Common errors"; Amazon S3 API reference, S3 Tables
(TooManyRequestsException).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from local_stack.wire import HttpAnswer, WireRequest, json_error, s3_error


@dataclass(slots=True)
class Faults:
    """Faults that hold now, and how often each struck."""

    throttles: int = 0
    lost: int = 0
    _every: int = 0
    _losing: tuple[str, str] | None = None
    _requests: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def throttling(self, every: int) -> Iterator[None]:
        """During the block, one in ``every`` requests of functions and jobs is throttled, and never two in a row."""
        assert every > 1, "if every request is throttled, none succeeds"
        self.throttles, self._requests, self._every = 0, 0, every
        try:
            yield
        finally:
            self._every = 0

    @contextmanager
    def losing_an_answer(self, method: str, ending: str) -> Iterator[None]:
        """While it lasts, the first request of this method whose path or operation ends so is carried out, and answered
        with an internal error."""
        self.lost, self._losing = 0, (method, ending)
        try:
            yield
        finally:
            self._losing = None

    def throttled(self, request: WireRequest) -> HttpAnswer | None:
        """The answer to a request whose turn it is to be throttled."""
        if not self._every:
            return None
        with self._lock:
            self._requests += 1
            if self._requests % self._every:
                return None
            self.throttles += 1
        match request.service:
            case "s3":
                return s3_error(request, "503 Slow Down", "SlowDown", "Please reduce your request rate.")
            case "s3tables":
                return json_error("429 Too Many Requests", "TooManyRequestsException", "Rate exceeded")
        return json_error("400 Bad Request", "ThrottlingException", "Rate exceeded")

    def is_lost(self, request: WireRequest) -> bool:
        """Whether the answer to this request is to be lost."""
        if self._losing is None:
            return False
        method, ending = self._losing
        if request.method != method or not (request.path.endswith(ending) or request.target.endswith(ending)):
            return False
        self.lost, self._losing = self.lost + 1, None
        return True


FAULTS = Faults()
"""The faults of this process, which has a single server."""
