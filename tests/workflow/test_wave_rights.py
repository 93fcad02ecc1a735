"""What a wave may do: its job's role is enough for every step of a table in a table bucket (rule 143, rule 163)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from support.rights_fleet import ALL_IN_JOBS, RightsFleet


@pytest.mark.slow
def test_the_role_of_the_wave_is_enough_for_all_steps_of_a_table_bucket(fleet: RightsFleet) -> None:
    """The gate judges each of its calls; of the rights to change tables there it needs every one."""
    stack, rights = fleet.stack, fleet.stack.rights
    fleet.give_policy()
    fleet.bucket_table("w", bucket="rights-wave")
    jobs = fleet.jobs_in_this_process()
    compaction, done, needed = jobs["compact_data_files"], set[str](), set[tuple[str, str]]()

    def wave(arguments: Mapping[str, str]) -> None:
        assert "--wave-key" in arguments
        before = set(rights.used)
        compaction(arguments)
        needed.update((one.policy, one.action) for (one, *more) in rights.used - before if not more)
        listed = stack.moto.client("s3").list_objects_v2(Bucket=stack.template.name("ControlBucket"))["Contents"]
        done.update(found["Key"].rpartition("/")[2] for found in listed)

    stack.stand_in({}, {**jobs, "compact_data_files": wave})
    stack.start_cold(ALL_IN_JOBS)
    execution = fleet.run({})
    assert {f"{step}.json" for step in ("compact", "expire_snapshots", "rewrite_manifests")} <= done
    assert execution.children[-1].output["status"] == "succeeded"
    told = execution.children[-1].output["summary"]
    assert "expired 5 snapshot(s), deleted 0 unreferenced file(s)" in told
    assert "rewrote 2 manifests into 1" in told
    (role,) = (one for one in rights.roles.values() if one.name == "GlueJobRole")
    commits = "CommitTableBucketsPolicy"
    allowed = {action for one in role.statements if one.policy == commits for action in one.actions}
    assert {action for policy, action in needed if policy == commits} == allowed
