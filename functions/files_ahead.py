"""Imports what reading and writing files in AWS needs while a function starts, when it has the most CPU.

Functions that read files import this module; otherwise their first call would import the same.  A function that reads
only the state does not, and starts in two thirds of the time (platform: function-import-time).
"""

from __future__ import annotations

import icekeeper.storage.file_systems
import icekeeper.storage.s3  # noqa: F401 - like the import above, for later use

__all__: list[str] = []
