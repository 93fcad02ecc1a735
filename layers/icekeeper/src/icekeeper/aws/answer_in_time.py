"""Waits for a source of credentials, but not for ever: a credential process may hang, and botocore sets it no limit."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from botocore.exceptions import CredentialRetrievalError

__all__ = ["ANSWERS_IN_S", "Patience"]

Answer = TypeVar("Answer")

ANSWERS_IN_S = 120.0
"""A person may have to type a code of a second factor meanwhile."""


class Patience:
    """Waits for one source of credentials; one that has not answered yet is not asked again."""

    def __init__(self) -> None:
        self._silent: Future[Any] | None = None

    def ask(self, ask: Callable[[], Answer], provider: str) -> Answer:
        """What ``ask`` answers, asked in a thread of its own, which is left behind if it does not answer.

        Raises:
            CredentialRetrievalError: there was no answer within :data:`ANSWERS_IN_S` seconds.
        """
        if self._silent is not None and not self._silent.done():
            raise _silence(provider)
        answer: Future[Answer] = Future()

        def run() -> None:
            try:
                answer.set_result(ask())
            except BaseException as error:
                answer.set_exception(error)

        # A daemon: the process can end although nobody ever answers.
        threading.Thread(target=contextvars.copy_context().run, args=(run,), name="credentials", daemon=True).start()
        try:
            return answer.result(ANSWERS_IN_S)
        except TimeoutError as error:
            if answer.done():  # it is what the source said
                raise
            self._silent = answer
            raise _silence(provider) from error


def _silence(provider: str) -> CredentialRetrievalError:
    return CredentialRetrievalError(provider=provider, error_msg=f"it has not answered for {ANSWERS_IN_S:g} s")
