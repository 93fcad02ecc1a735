"""What Step Functions says about a task that failed."""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict

__all__ = ["Failure"]


class Failure(BaseModel):
    """The error of a task, by name, and what it said."""

    model_config = ConfigDict(frozen=True)

    Error: str = "Unknown"
    Cause: str = ""

    @property
    def sentence(self) -> str:
        """Error and message in one line; the message is taken out of the JSON that Lambda and Glue give as cause."""
        try:
            cause = json.loads(self.Cause)
            message = cause.get("errorMessage") or cause.get("ErrorMessage") or self.Cause
        except (ValueError, AttributeError):
            message = self.Cause
        return f"{self.Error}: {' '.join(str(message).split())}".removesuffix(": ")
