"""``python -m smoke STACK``: exit code 0 if all checks pass, 1 if a check found a problem, 2 for a wrong call."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from smoke.checks import check_stack
from smoke.deployed_stack import DeployedStack
from smoke.scratch_table import catalog_of_table_bucket, scratch_table


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m smoke", description="Check that a deployed stack works.")
    parser.add_argument("stack", metavar="STACK", help="the name of the CloudFormation stack")
    parser.add_argument(
        "--catalog",
        metavar="C",
        help="a catalog that both the stack and PyIceberg's configuration on this machine have; default: the first of "
        "the stack's table buckets",
    )
    parser.add_argument("--profile", help="profile of AWS's configuration")
    parser.add_argument("--region", help="region of the stack")
    parser.add_argument("--timeout", type=float, default=1800, metavar="S", help="how long each run may take")
    return parser.parse_args(arguments)


def main(
    arguments: Sequence[str] | None = None,
    *,
    properties: Mapping[str, str] | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> int:
    """Check a stack, and print what each check found.

    ``properties`` of the named catalog, unless PyIceberg's configuration has them; ``sleep`` is called between two
    polls.
    """
    options = _options(arguments)
    session = boto3.Session(profile_name=options.profile, region_name=options.region)
    try:
        stack = DeployedStack(options.stack, session, sleep)
    except (BotoCoreError, ClientError) as error:
        return _wrong_call(f"the stack {options.stack} cannot be read: {error}")
    catalog = options.catalog
    if catalog is None:
        if stack.table_bucket is None:
            return _wrong_call(f"{options.stack} names no table bucket: give --catalog with the catalog of its tables")
        catalog, properties = stack.table_bucket, catalog_of_table_bucket(stack.table_bucket)
    return _checked(stack, catalog, properties or {}, options.timeout, print)


def _checked(
    stack: DeployedStack, catalog: str, properties: Mapping[str, str], limit_s: float, notify: Callable[[str], None]
) -> int:
    wrong = 0
    with scratch_table(catalog, properties) as scratch:
        notify(f"scratch table {scratch.name}")
        for found in check_stack(stack, scratch, catalog, limit_s=limit_s):
            wrong += not found.is_well
            notify(f"{'ok   ' if found.is_well else 'WRONG'}  {found.what}: {found.sentence}")
    notify("the scratch table is removed")
    notify(f"{wrong} check(s) found a problem" if wrong else "the stack works")
    return 1 if wrong else 0


def _wrong_call(sentence: str) -> int:
    sys.stderr.write(f"{sentence}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
