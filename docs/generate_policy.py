"""Renders docs/policy.md from the ``Policy`` model: ``python docs/generate_policy.py > docs/policy.md``."""

from __future__ import annotations

import sys

from icekeeper.policy import Policy
from icekeeper.policy.keys import KEY_FACTS, MORE, TIGHTER_ONLY, KeyFacts
from icekeeper.policy.values import text_of

HEAD = """# Policy keys

Generated from the `Policy` model by `docs/generate_policy.py`; do not edit.

A later source wins over an earlier one:

1. the built-in default
2. the deployment: environment variable `ICEKEEPER_<KEY>`; an empty variable is not set
3. the [policy file](#policy-file), its later rules over its earlier ones
4. in an AWS table bucket, the bucket's maintenance configuration of the table
   ([operations](operations/index.md#who-maintains-what-in-a-table-bucket-on-aws))
5. Iceberg's own table properties: `write.target-file-size-bytes`, `history.expire.max-snapshot-age-ms`,
   `history.expire.min-snapshots-to-keep`
6. table property `icekeeper.<key>`, as `icekeeper policy set` writes it
7. this call: `--set KEY=VALUE`

`ICEKEEPER_BOUND_<KEY>` sets a bound, the loosest value that any later source may set, for every key that has a
direction in the table below. `icekeeper policy show NS.TABLE --catalog C` prints the values that are not defaults, with
their sources; `--all` prints the others, too. An unknown key or a wrong value is an error, except a wrong value that
would not count.

## Settings of a table

`icekeeper policy set NS.TABLE KEY=VALUE... --catalog C` stores settings in the table, as properties `icekeeper.<key>`,
in one commit; `policy unset` removes some, `policy reset` all. For a pattern such as `'shop.*'` they list its tables
and ask; without a terminal they need `--yes`. What is wrong or would have no effect ([below](#what-a-table-may-set)) is
a usage error (exit code 2), and nothing changes.

## Policy file

A file of rules has the settings of many tables. `icekeeper policy init` writes a commented one to
`~/.config/icekeeper/icekeeper.yaml` (`$XDG_CONFIG_HOME`), where every command finds it. File and folder must belong to
the user, and nobody else may write them. `icekeeper policy check FILE` shows what each rule sets for which tables.

`ICEKEEPER_POLICY_FILE` names a local path or an `s3://` address in its place; functions, jobs and the library know only
this variable. A file in the current folder, which may come with a cloned repository, never counts.

```yaml
rules:
- settings:                     # no pattern: every table
    snapshot_retention_hours: 72
- bucket: prod-*                # the warehouse's bucket or last folder
  namespace: analytics, finance.*
  table: events_?
  settings:
    target_file_size_mb: 512
    strategy: sort
```

A rule applies where all its patterns match (comma-separated, case-sensitive, wildcards `*` and `?`); later rules win.
Values are written as after `--set`. Settings of the deployment and bounds are not allowed. A mistake stops every
command that uses the file (exit code 2). A missing local file is a mistake, a missing S3 object counts as no file.

## What a table may set

Any writer of a table may set its properties, Iceberg's own (5) and `icekeeper.*` (6). So these never undo what the
operator set in 2 to 4:

* A tighter value than the operator's, which deletes or costs less, always counts. `orphan_protected_prefixes` of all
  sources hold together; where metadata of another table stops a sweep, only those of the other sources waive that.
* `table_settings` (`ICEKEEPER_TABLE_SETTINGS`, parameter `TableSettings` of the stack) lists what tables may set
  besides: keys, which then may have any value within the bounds; `default`, the column "a table may set";
  `all`; `none`. To add a key to the default, write `default,KEY`.
* A stated key is one that the deployment, the policy file or the bucket's configuration sets.
* `orphan_sweep_prefixes`, `orphan_table_types`, `orphan_file_endings` and `snapshot_give_up_ids` count from the
  deployment, a policy file and `--set` only.
* A table's setting has up to 10,000 characters.

A setting that does not count is ignored and fails no pass: `health` warns of it (`ignored_settings`), `policy show`
gives the reason, and `policy set` refuses it. The bucket's maintenance configuration (4) counts as the operator's.

## Keys

"Tighter" says which values delete or cost less, and so the direction of a bound. A key without it has no bound. A key
that is empty there, or "until stated", may have any value where the operator states none, else a tighter one.
"Deployment" keys are set by the deployment and `--set`.

| key | default | meaning | a table may set | tighter |
|---|---|---|---|---|
"""


def render() -> str:
    """The whole page."""
    rows = []
    for key, field in Policy.model_fields.items():
        facts = KEY_FACTS[key]
        meaning = (field.description or "").replace("|", "\\|")
        tighter = "" if facts.tighter is None or facts.is_of_deployment else facts.tighter.words
        rows.append(f"| `{key}` | {text_of(field.default)} | {meaning} | {_table_may(key, facts)} | {tighter} |\n")
    return HEAD + "".join(rows)


def _table_may(key: str, facts: KeyFacts) -> str:
    """What a table may set of a key by default."""
    if facts.is_of_deployment:
        return "deployment"
    if facts.is_of_call or (facts.tighter is None and key in TIGHTER_ONLY):
        return "nothing"
    if facts.tighter is MORE:
        return "more"
    if key in TIGHTER_ONLY:
        return "tighter only"
    limit = "" if facts.table_limit is None else f", to {text_of(facts.table_limit)} at the loosest"
    if facts.undermines:
        return f"any where {' and '.join(f'`{other}`' for other in facts.undermines)} are neither stated nor bounded"
    if facts.tighter is None or facts.is_of_layout:
        return f"any{limit}"
    return f"until stated{limit}" if limit else ""


if __name__ == "__main__":
    sys.stdout.write(render())
