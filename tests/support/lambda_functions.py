"""The functions, called in this process as by Lambda: an event of events/, a context, a result, log lines, metrics."""

from __future__ import annotations

import importlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aws_lambda_powertools.logging import logger as powertools

from icekeeper.pipeline.deployment import Deployment
from local_stack.functions import LambdaContext, forget_modules
from local_stack.metrics import Metric, metrics_in

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = ROOT / "functions"


def sample(name: str) -> Any:
    """An event of events/."""
    return json.loads((ROOT / "events" / f"{name}.json").read_text())


@dataclass(frozen=True, slots=True)
class Answer:
    """The result and the log of a call."""

    result: Any
    error: Exception | None
    output: str

    @property
    def lines(self) -> list[Mapping[str, Any]]:
        """The log lines, which must all be JSON."""
        documents = [json.loads(line) for line in self.output.splitlines()]
        return [document for document in documents if "_aws" not in document]

    def lines_of(self, event: str) -> list[Mapping[str, Any]]:
        return [line for line in self.lines if line.get("event") == event]

    @property
    def metrics(self) -> list[Metric]:
        return list(metrics_in(self.output))

    def values(self, *dimensions: str) -> dict[str, float]:
        """The metrics that have exactly these dimensions."""
        return {metric.name: metric.value for metric in self.metrics if set(metric.dimensions) == set(dimensions)}


def give_up_package_logger(patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let Powertools configure the package's logger, as in the process of a function.

    Its handler writes to the standard output of the test, which is closed afterwards.  ``patch`` removes the handler at
    the end of the test; the caller must call the returned function then.
    """
    logger = logging.getLogger("icekeeper")
    level = logger.level
    patch.setattr(logger, "handlers", [])
    for mark in ("init", "powertools_handler"):
        patch.setattr(logger, mark, None, raising=False)
    patch.setattr(powertools, "is_cold_start", True)
    forget_modules(FUNCTIONS)

    def end() -> None:
        logger.setLevel(level)
        forget_modules(FUNCTIONS)

    return end


class LambdaFunctions:
    """A deployment's functions in one environment, cold at the start."""

    def __init__(
        self, environment: Mapping[str, str], patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self._capture = capture
        for name in [name for name in os.environ if name.startswith(("ICEKEEPER_", "POWERTOOLS_"))]:
            patch.delenv(name)
        for name, value in environment.items():
            patch.setenv(name, value)
        self.end = give_up_package_logger(patch)
        """Restores the logger and modules; call it at the end of the test."""

    @property
    def deployment(self) -> Deployment:
        """The deployment of the functions."""
        found: Callable[[], Deployment] = importlib.import_module("observability").deployment
        return found()

    def call(self, role: str, event: Any, *, seconds: float = 900.0) -> Answer:
        """Call a function as Lambda does."""
        handler = importlib.import_module(role).handle
        context = LambdaContext(f"icekeeper-{role}", 1024, time.monotonic() + seconds)
        self._capture.readouterr()
        result, failure = None, None
        try:
            result = json.loads(json.dumps(handler(event, context)))
        except Exception as error:
            failure = error
        return Answer(result, failure, self._capture.readouterr().out)
