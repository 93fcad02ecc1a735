"""Metrics as CloudWatch would take them from what functions print (its embedded metric format)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """One value."""

    name: str
    value: float
    dimensions: Mapping[str, str]


def metrics_in(printed: str) -> Iterator[Metric]:
    """Every metric of a function's output, in order, once for each set of dimensions; other lines are passed over."""
    for line in printed.splitlines():
        if not line.startswith("{"):
            continue
        document = json.loads(line)
        for directive in document.get("_aws", {}).get("CloudWatchMetrics", ()):
            for group in directive["Dimensions"]:
                dimensions = {name: str(document[name]) for name in group}
                for metric in directive["Metrics"]:
                    values = document[metric["Name"]]
                    for value in values if isinstance(values, list) else [values]:
                        yield Metric(metric["Name"], float(value), dimensions)
