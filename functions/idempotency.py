"""Prevents two attempts at a step from running at once: Step Functions may retry while the first attempt still runs.

Attempts are recorded in the state table, under ``pk = "idempotency"``; the state itself names all its partitions
``KIND#NAME`` (``icekeeper.state.items``), so the two never collide.  An attempt that raises removes its record; a
killed attempt blocks others until its own deadline; a repetition gets the answer of an attempt that ended.

* Steps of a pass: their key is run and table.  The state machine calls each of them once per table of a run.
* ``list_orphans``: changes no table, but a late attempt would overwrite the list that is being deleted.
* ``plan``: a late attempt would overwrite the plan that the stages carry out.
* ``gather``: a late attempt would overwrite the work, and a job with its digest would refuse it.
* ``detect``: a late attempt would overwrite the proposals that its run is working through.
* ``clean_staged``: its key is the run.

The step is a part of every key, the function is not: steps of one function never wait for each other.

``report`` is not guarded, because its answer must be new each time: it finds the reports of tables in the control
bucket, and the state records the same pass once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.utilities.idempotency import DynamoDBPersistenceLayer, IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyInconsistentStateError,
    IdempotencyPersistenceLayerError,
)

from icekeeper.errors import StorageError
from icekeeper.state.dynamodb.table import open_table
from icekeeper.state.identity import parse_address
from observability import logger

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.typing import LambdaContext

# No execution lasts longer than the state machine's twelve hours.
_REMEMBERED_S = 24 * 60 * 60


@cache
def _memory() -> DynamoDBPersistenceLayer | None:
    """Where attempts are recorded; ``None`` where the state is a file, which no other machine shares."""
    address = parse_address(os.environ)
    if address is None:
        return None
    table = open_table(address)
    return DynamoDBPersistenceLayer(
        table_name=table.name,
        key_attr="pk",
        sort_key_attr="sk",
        static_pk_value="idempotency",
        expiry_attr="expires_s",
        boto3_client=table.client,
    )


def once(
    step: str, key: Mapping[str, Any], context: LambdaContext, work: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Do the work and return its answer; if an attempt under the same key has ended before, return its answer.

    Raises:
        IdempotencyAlreadyInProgressError: another attempt may still run; the state machine retries this error later.
        StorageError: the state table cannot be used; nothing was begun.
    """
    memory = _memory()
    if memory is None:
        return work()
    config = IdempotencyConfig(
        expires_after_seconds=_REMEMBERED_S, hash_function="sha256", raise_on_no_idempotency_key=True
    )
    config.register_lambda_context(context)
    answers: list[dict[str, Any]] = []
    errors: list[Exception] = []

    def attempt(*, key: dict[str, Any]) -> dict[str, Any]:
        try:
            answers.append(work())
        except Exception as error:
            errors.append(error)
            raise
        return answers[0]

    barred = idempotent_function(
        attempt, data_keyword_argument="key", persistence_store=memory, config=config, key_prefix=step
    )
    try:
        return dict(barred(key=dict(key)))
    except (IdempotencyPersistenceLayerError, IdempotencyInconsistentStateError) as error:
        if errors:  # raise the error of the work, not that of removing the attempt's record
            raise errors[0] from None
        if answers:  # the work is done: a repetition finds its outcome in the control bucket
            logger.warning("the end of %s could not be recorded: %s", step, error)
            return answers[0]
        raise StorageError(f"the state table cannot show whether {step} is running already: {error}") from error
