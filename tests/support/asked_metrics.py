"""The metrics of ours that the template's alarms and dashboard ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from local_stack.template import load_template


def asked_for() -> Iterator[tuple[str, frozenset[str]]]:
    """Every metric of ours that the template's alarms and dashboard name, with the names of its dimensions."""
    resources = load_template()["Resources"]
    for resource in resources.values():
        properties = resource.get("Properties", {})
        if resource["Type"] == "AWS::CloudWatch::Alarm" and properties["Namespace"] == "Icekeeper":
            yield properties["MetricName"], frozenset(d["Name"] for d in properties["Dimensions"])
    for widget in json.loads(resources["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"])["widgets"]:
        for metric in widget["properties"]["metrics"]:
            if metric[0] == "Icekeeper":
                yield metric[1], frozenset(metric[2::2])
            elif isinstance(metric[0], dict):
                (found,) = re.findall(r"{Icekeeper,([\w,]+)} MetricName=\"([\w.]+)\"", metric[0]["expression"])
                yield found[1], frozenset(found[0].split(","))
