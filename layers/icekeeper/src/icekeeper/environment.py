"""Which variables of an environment count as set: an empty one does not."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["variables_set"]


def variables_set(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold more than blanks.

    A template, a compose file or a shell script often cannot leave a variable out, only empty; ``sam local invoke``
    makes an empty one of ``AWS::NoValue``.
    """
    return {name: value for name, value in environment.items() if value.strip()}
