"""Prefect 3: detect the tables of a catalog that need work every six hours, and maintain each in a task of its own."""

from prefect import flow, task

from icekeeper import Icekeeper

CATALOG = "lake"


@task(retries=1)
def maintain(table: str) -> str:
    """Run one pass over a table."""
    outcome = Icekeeper(CATALOG).maintain(table)
    if outcome.status != "succeeded":
        raise RuntimeError(outcome.summary)
    return outcome.summary


@flow
def icekeeper() -> list[str]:
    """Maintain what needs it."""
    return [maintain(found.table) for found in Icekeeper(CATALOG).detect().proposals]


if __name__ == "__main__":
    icekeeper.serve(name="icekeeper", cron="0 */6 * * *")
