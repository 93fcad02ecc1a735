"""What an operator sees of a stack from outside, put where AWS shows it: outputs, logs, metrics.

moto neither makes the stack from the template nor reads the output of functions, so this module gives it both.
"""

from __future__ import annotations

import json
import time
from typing import Any

from local_stack.functions import Invocation
from local_stack.metrics import metrics_in
from local_stack.stack import LocalStack


class OutsideView:
    """One stack, seen from outside; entered before the stack is looked at."""

    def __init__(self, stack: LocalStack) -> None:
        self._stack = stack
        # Making a client reads the environment, which functions of a run change meanwhile.
        self._logs, self._cloudwatch = (stack.moto.client(service) for service in ("logs", "cloudwatch"))
        self._delivered: dict[int, Invocation] = {}

    def describe(self, **parameters: str) -> str:
        """Have CloudFormation know the stack by its outputs, and by some parameters; returns its name."""
        outputs = self._stack.template.outputs()
        # Any resource, because CloudFormation accepts no stack without resources.
        document = {
            "Parameters": {name: {"Type": "String"} for name in parameters},
            "Resources": {"Topic": {"Type": "AWS::SNS::Topic"}},
            "Outputs": {name: {"Value": value} for name, value in outputs.items()},
        }
        self._stack.moto.client("cloudformation").create_stack(
            StackName=self._stack.template.stack,
            TemplateBody=json.dumps(document),
            Parameters=[{"ParameterKey": name, "ParameterValue": value} for name, value in parameters.items()],
        )
        return self._stack.template.stack

    def deliver(self, *_: object) -> None:
        """Give CloudWatch what functions printed since the last time: log lines, and the metrics in them."""
        for function in self._stack.functions.values():
            # A stack forgets its calls when it starts afresh, so their number says nothing.
            new = [call for call in function.invocations if id(call) not in self._delivered]
            self._delivered |= {id(call): call for call in new}
            printed = "".join(call.output for call in new)
            if printed:
                _put_lines(self._logs, self._stack.template.stack, printed)
                for metric in metrics_in(printed):
                    self._cloudwatch.put_metric_data(
                        Namespace="Icekeeper",
                        MetricData=[
                            {
                                "MetricName": metric.name,
                                "Value": metric.value,
                                "Dimensions": [{"Name": n, "Value": v} for n, v in metric.dimensions.items()],
                            }
                        ],
                    )


def _put_lines(logs: Any, stack: str, printed: str) -> None:
    group, stream = f"/aws/lambda/{stack}", "local"
    if not logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]:
        logs.create_log_group(logGroupName=group)
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
    now_ms = time.time_ns() // 1_000_000
    events = [{"timestamp": now_ms, "message": line} for line in printed.splitlines() if line]
    logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)
