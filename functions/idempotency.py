"""Keeps two attempts at a step from running at once: Step Functions may try again while the first still runs.

Attempts are recorded in the state table, under ``pk = "idempotency"``; the state itself names all its partitions
``KIND#NAME`` (``icekeeper.state.items``), so the two never meet.  An attempt that raises removes its record;
one that is killed bars others until its own deadline; the answer of one that ended is given to repetitions.

* Operations and ``clean_staged``: key are run, table, operation and plan.  A plan that was made again has another
  digest, so an answer never hides what is still to be done.
* ``list_orphans``: changes no table, but a late attempt would overwrite the list that is being deleted.
* ``plan``: a late attempt would overwrite the plan whose digest the state machine has; every step would refuse.
* ``detect``: a late attempt would write other proposals over those that its run is working through.
* ``report`` of a table: a repetition would write the journal's entry and count the metrics twice.

Not guarded are ``lease``, whose writes are conditional and whose answer must be new each time, and ``report`` of a run,
which writes the same document again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from aws_lambda_powertools.utilities.idempotency import (
    DynamoDBPersistenceLayer,
    IdempotencyConfig,
    idempotent_function,
)
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyInconsistentStateError,
    IdempotencyPersistenceLayerError,
)

from icekeeper.errors import StorageError
from icekeeper.state.dynamodb.table import open_table
from icekeeper.state.identity import parse_address
from observability import logger

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


def once(step: str, key: Mapping[str, Any], context: Any, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Do the work and return its answer; if an attempt under the same key has ended before, return that one's answer.

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
        if errors:  # the error of the work matters, and not that the record of the attempt could not be removed
            raise errors[0] from None
        if answers:  # the work is done: a repetition finds its outcome in the control bucket
            logger.warning("that %s ended could not be remembered: %s", step, error)
            return answers[0]
        raise StorageError(f"the state table does not tell whether {step} is being done already: {error}") from error
