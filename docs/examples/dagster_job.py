"""Dagster: detect the tables of a catalog that need work every six hours, and maintain each in an op of its own."""

from dagster import Definitions, DynamicOut, DynamicOutput, ScheduleDefinition, job, op

from icekeeper import Icekeeper

CATALOG = "lake"


@op(out=DynamicOut(str))
def detect():
    """Name the tables that need work, most urgent first."""
    for number, found in enumerate(Icekeeper(CATALOG).detect().proposals):
        yield DynamicOutput(found.table, mapping_key=str(number))


@op
def maintain(table: str) -> str:
    """Run one pass over a table."""
    outcome = Icekeeper(CATALOG).maintain(table)
    if outcome.status != "succeeded":
        raise RuntimeError(outcome.summary)
    return outcome.summary


@job
def icekeeper():
    """Maintain what needs it."""
    detect().map(maintain)


definitions = Definitions(schedules=[ScheduleDefinition(job=icekeeper, cron_schedule="0 */6 * * *")])
