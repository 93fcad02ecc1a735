"""What moto 5.2.5 leaves out of Glue: ``UpdateTable`` on the condition that the table still has a version.

``tests/contract/test_canaries.py`` says when this is needed no more (platform: moto-lets-pass).
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from moto.glue.exceptions import GlueClientError
from moto.glue.responses import GlueResponse

_ONE_AT_A_TIME = threading.Lock()


def install() -> None:
    """Compare ``VersionId`` with the table's, and update, as one step; in this process, for all of its servers."""
    original = GlueResponse.update_table
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def update_table(self: GlueResponse) -> Any:
        wanted = self.parameters.get("VersionId")
        with _ONE_AT_A_TIME:
            table = self.glue_backend.get_table(self.parameters["DatabaseName"], self.parameters["TableInput"]["Name"])
            if wanted is not None and wanted != table.as_dict()["VersionId"]:
                raise GlueClientError(
                    "ConcurrentModificationException", "Update table failed due to concurrent modifications."
                )
            return original(self)

    setattr(GlueResponse, "update_table", update_table)  # noqa: B010  # mypy knows no other way
