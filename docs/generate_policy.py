"""Renders docs/policy.md from the ``Policy`` model: ``python docs/generate_policy.py > docs/policy.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from icekeeper.policy import Policy
from icekeeper.policy.keys import DEPLOYMENT_KEYS
from icekeeper.policy.layers import BOUND_KEYS
from icekeeper.policy.schedules import SCHEDULE_KEYS
from icekeeper.policy.values import text_of

HEAD = """# Policy keys

Generated from the `Policy` model by `docs/generate_policy.py`; do not edit.

A later source wins over an earlier one:

1. the built-in default
2. the deployment: environment variable `ICEKEEPER_<KEY>`
3. the policy file that `ICEKEEPER_POLICY_FILE` names, its later rules over its earlier ones
4. in an AWS table bucket, the bucket's maintenance configuration of the table
   ([operations.md](operations.md#who-maintains-what-in-a-table-bucket-on-aws))
5. Iceberg's own table properties: `write.target-file-size-bytes`, `history.expire.max-snapshot-age-ms`,
   `history.expire.min-snapshots-to-keep`
6. table property `icekeeper.<key>`, as `icekeeper policy set` writes it
7. this call: `--set KEY=VALUE`

`schedules.NAME.KEY` sets a key for one named schedule, and `schedules.NAME.interval` how often it runs; in the
environment `ICEKEEPER_SCHEDULES__NAME__KEY` ([operations.md](operations.md#schedules)). Not per schedule: {whole}.

`ICEKEEPER_BOUND_<KEY>` sets a bound that no later source can loosen. Keys that can be bounded: {bounds}.
A variable that is empty is not set.
`icekeeper policy show NS.TABLE --catalog C` prints every value with its source. An unknown key or a wrong value is an
error, never ignored. `gc.enabled=false` on a table forbids every operation that deletes files.
[operations.md](operations.md) has an example of a policy file, and says who maintains what in a table bucket on AWS.

| key | default | meaning | note |
|---|---|---|---|
"""


def render() -> str:
    """The whole page."""
    rows = []
    for key, field in Policy.model_fields.items():
        note = "deployment and `--set` only" if key in DEPLOYMENT_KEYS else ""
        meaning = (field.description or "").replace("|", "\\|")
        rows.append(f"| `{key}` | {text_of(field.default)} | {meaning} | {note} |\n")
    whole = [key for key in Policy.model_fields if key not in SCHEDULE_KEYS and key not in DEPLOYMENT_KEYS]
    return HEAD.format(bounds=_listed(sorted(BOUND_KEYS)), whole=_listed(whole)) + "".join(rows)


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


if __name__ == "__main__":
    sys.stdout.write(render())
