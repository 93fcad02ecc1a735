"""Airflow 3: detect the tables of a catalog that need work every six hours, and maintain each in a task of its own."""

from datetime import datetime

from airflow.sdk import dag, task

CATALOG = "lake"


@dag(schedule="0 */6 * * *", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1)
def icekeeper():
    """Maintain what needs it."""

    @task
    def detect() -> list[str]:
        from icekeeper import Icekeeper

        return [found.table for found in Icekeeper(CATALOG).detect().proposals]

    @task(retries=1, max_active_tis_per_dagrun=2)
    def maintain(table: str) -> str:
        from icekeeper import Icekeeper

        outcome = Icekeeper(CATALOG).maintain(table)
        if outcome.status != "succeeded":
            raise RuntimeError(outcome.summary)
        return outcome.summary

    maintain.expand(table=detect())


icekeeper()
