"""The settings that a deployment gives its functions as environment variables, and those that travel to Glue jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from icekeeper.errors import PolicyError
from icekeeper.operation_facts import Limit

__all__ = ["PipelineSettings", "travelling_environment"]

CONTROL_BUCKET = "ICEKEEPER_CONTROL_BUCKET"
# Up to this a function costs less than a full wave, and surely ends (pipeline/compaction_costs.py derives it).
_SMALL_COMPACTION_MB = 1280
# Variables with this prefix go into the plan.  Those of catalogs (PYICEBERG_CATALOG__…) may hold secrets, and do not.
_TRAVELS = "ICEKEEPER_"


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """The settings of the pipeline itself; how tables are maintained is up to the policy."""

    control_bucket: str
    limits: Mapping[Limit, int]
    """Up to these a Lambda function does the work, beyond them a Glue job; in bytes or files."""

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> PipelineSettings:
        """Raises PolicyError for a variable that is missing or malformed, by its name."""
        bucket = environment.get(CONTROL_BUCKET, "").strip()
        if not bucket:
            raise PolicyError(f"environment variable {CONTROL_BUCKET} is not set; it names the deployment's bucket")
        return cls(
            control_bucket=bucket,
            limits={
                Limit.COMPACTION_BYTES: _number(environment, Limit.COMPACTION_BYTES, _SMALL_COMPACTION_MB)
                * 1024
                * 1024,
                Limit.MANIFEST_ENTRIES: _number(environment, Limit.MANIFEST_ENTRIES, 100_000),
                Limit.ORPHAN_REFERENCES: _number(environment, Limit.ORPHAN_REFERENCES, 100_000),
            },
        )

    @property
    def control_address(self) -> str:
        """The bucket's address; a name with a slash is a local folder."""
        return self.control_bucket if "/" in self.control_bucket else f"s3://{self.control_bucket}"


def travelling_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a plan carries, so that a job works under the same settings as the functions."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith(_TRAVELS)}


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default)).strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise PolicyError(f"environment variable {name} is '{text}'; it must be a whole number")
    return int(text)
