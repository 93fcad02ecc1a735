"""A function that succeeds, fails for good, or fails at first."""

import os
from typing import Any

import boto3


class Transient(Exception):
    pass


class Poison(Exception):
    pass


tries: dict[str, int] = {}


def handle(event: Any, context: Any) -> Any:
    way = event["item"]["way"]
    tries[way] = tries.get(way, 0) + 1
    print(f"working on {way}")
    if way == "poison":
        raise Poison("it is bad")
    if way == "transient" and tries[way] < 3:
        raise Transient("try again")
    if way == "no json":
        return {1, 2}
    buckets = [bucket["Name"] for bucket in boto3.client("s3").list_buckets()["Buckets"]]
    return {
        "event": event,
        "environment": {key: os.environ.get(key) for key in ("CONTROL", "WHO", "GREETING", "STATE")},
        "sees_the_bucket": os.environ["CONTROL"] in buckets,
        "remaining_ms": context.get_remaining_time_in_millis(),
        "name": context.function_name,
    }
