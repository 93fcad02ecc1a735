"""What a deployment tells its functions by environment variables, and what of it travels on to Glue jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from icekeeper.errors import PolicyError

__all__ = ["PipelineSettings", "Thresholds", "travelling_environment"]

CONTROL_BUCKET = "ICEKEEPER_CONTROL_BUCKET"
# What a job needs is asked for by these; variables of catalogs may hold secrets, and stay at home.
_TRAVELS = "ICEKEEPER_"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Up to here a Lambda function does the work, beyond it a Glue job."""

    compaction_bytes: int
    manifest_entries: int
    orphan_references: int


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """The settings of the pipeline itself; how tables are maintained is the policy's."""

    control_bucket: str
    thresholds: Thresholds

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> PipelineSettings:
        """Raises PolicyError for a variable that is missing or malformed, by its name."""
        bucket = environment.get(CONTROL_BUCKET, "").strip()
        if not bucket:
            raise PolicyError(f"environment variable {CONTROL_BUCKET} is not set; it names the deployment's bucket")
        return cls(
            control_bucket=bucket,
            thresholds=Thresholds(
                compaction_bytes=_number(environment, "ICEKEEPER_SMALL_COMPACTION_MB", 512) * 1024 * 1024,
                manifest_entries=_number(environment, "ICEKEEPER_SMALL_MANIFESTS", 100_000),
                orphan_references=_number(environment, "ICEKEEPER_SMALL_ORPHANS", 100_000),
            ),
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
