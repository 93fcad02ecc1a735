"""Imports what reading and writing files in AWS needs, while a function starts, when it has the most processor.

Functions that read files import this module; else their first call would import the same.  One that only asks the state
does without, and starts in two thirds of the time (platform: function-import-time).
"""

from __future__ import annotations

import icekeeper.storage.file_systems
import icekeeper.storage.s3  # noqa: F401 - like the one above, imported for later and not used here

__all__: list[str] = []
