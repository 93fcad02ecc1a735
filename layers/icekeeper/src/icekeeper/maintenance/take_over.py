"""``ownership=icekeeper``: the table bucket's own operation is switched off before ours begins (rule 115)."""

from __future__ import annotations

import logging

from icekeeper.errors import OperationRefused, StorageError
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation

__all__ = ["take_over"]

log = logging.getLogger(__name__)


def take_over(operation: Operation, context: OperationContext) -> None:
    """Switch off the table bucket's own operation, if it has one that does the same; does nothing in a dry run.

    Raises:
        OperationRefused: it could not be switched off; two must not do the same work.
    """
    built_in = context.resolved.owners.taken_over.get(operation)
    maintenance = context.catalog.built_in_maintenance
    if built_in is None or maintenance is None or context.dry_run:
        return
    try:
        maintenance.disable(context.table, built_in)
    except StorageError as error:
        raise OperationRefused(
            f"the table bucket's own {built_in.value} could not be switched off ({error}), so nothing was done; allow "
            "s3tables:PutTableMaintenanceConfiguration, or set ownership=auto"
        ) from error
    log.info("%s: the table bucket's own %s was switched off", context.table, built_in.value)
