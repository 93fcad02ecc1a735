"""The properties with which workers access files: workers get keys themselves, unless the operator sets otherwise.

A task contains a profile's name or a role, but no keys except configured or vended keys, because anybody who can read a
task can read its keys, and nothing renews them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from icekeeper.aws.settings import current_properties, identity_in, is_anonymous, region_of, with_keys
from icekeeper.errors import PolicyError, StorageError

WORKER_CREDENTIALS = "ICEKEEPER_WORKER_CREDENTIALS"
"""``own``, or ``driver``: a task contains the keys that this process has when it sends the task."""


def properties_for_workers(properties: Mapping[str, str]) -> dict[str, str]:
    """The FileIO properties to put into a task.

    Raises:
        PolicyError: :data:`WORKER_CREDENTIALS` has another value.
        StorageError: this process cannot get the keys.
    """
    found = current_properties(properties)
    wanted = os.environ.get(WORKER_CREDENTIALS, "").strip() or "own"
    if wanted not in ("own", "driver"):
        raise PolicyError(f"{WORKER_CREDENTIALS} is '{wanted}'; set it to own or driver")
    if wanted == "own" or is_anonymous(found) or identity_in(found).is_static:
        return found
    from botocore.exceptions import BotoCoreError, ClientError

    from icekeeper.aws.session import aws_session  # imports boto3

    try:
        session = aws_session(found)
        keys = session.keys()
    except (BotoCoreError, ClientError) as error:
        raise StorageError(f"{WORKER_CREDENTIALS}=driver needs keys to send, but there are none: {error}") from error
    if keys is None:
        return found
    if region := region_of(found) or session.region_name:
        found.setdefault("s3.region", region)
    return with_keys(found, keys.access_key, keys.secret_key, keys.token)
