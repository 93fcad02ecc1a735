"""What moto 5.2.5 leaves out of Glue: ``UpdateTable`` on the condition that the table still has a version.

``tests/contract/test_canaries.py`` says when this is needed no more (platform: moto-glue-version-id).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from moto.glue.exceptions import GlueClientError
from moto.glue.responses import GlueResponse


@contextmanager
def versions_checked() -> Iterator[None]:
    """Compare ``VersionId`` with the table's, and update, as one step."""
    original = GlueResponse.update_table
    one_at_a_time = threading.Lock()

    @functools.wraps(original)
    def update_table(self: GlueResponse) -> Any:
        wanted = self.parameters.get("VersionId")
        with one_at_a_time:
            table = self.glue_backend.get_table(self.parameters["DatabaseName"], self.parameters["TableInput"]["Name"])
            if wanted is not None and wanted != table.as_dict()["VersionId"]:
                raise GlueClientError(
                    "ConcurrentModificationException", "Update table failed due to concurrent modifications."
                )
            return original(self)

    with mock.patch.object(GlueResponse, "update_table", update_table):
        yield
