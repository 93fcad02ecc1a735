"""Which master Spark would take by its own settings, and whether that is another machine (pure).

Source: ``org.apache.spark.deploy.SparkSubmitArguments``: ``--master``, then ``--conf spark.master``, then
``spark-defaults.conf``, then the variable ``MASTER``.  PySpark passes ``PYSPARK_SUBMIT_ARGS`` to ``spark-submit``, and
``bin/pyspark`` sets it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from itertools import pairwise

__all__ = ["is_elsewhere", "local_cores", "named_master"]

# Spark documentation, "Submitting Applications", "Master URLs"; MASTER alone is a common name of a variable.
_ELSEWHERE = re.compile(r"(spark|k8s|mesos)://.+|yarn(-client|-cluster)?")


def named_master(environment: Mapping[str, str], defaults: str = "") -> str | None:
    """The master that Spark's settings name, ``defaults`` being the text of ``spark-defaults.conf``; or ``None``."""
    words = _words(environment.get("PYSPARK_SUBMIT_ARGS", ""))
    return (
        _option(words, "--master", "") or _option(words, "--conf", "spark.master=") or _default(defaults)
    ) or environment.get("MASTER")


def is_elsewhere(master: str | None) -> bool:
    """Whether the executors of that master may be on other machines; ``local-cluster`` is this one."""
    return master is not None and _ELSEWHERE.fullmatch(master.strip()) is not None


def local_cores(master: str, machine_cores: int) -> int:
    """The cores of a master such as ``local[4]`` or ``local[*]``; 0 where executors are processes of their own."""
    if master == "local":
        return 1
    found = re.fullmatch(r"local\[(\*|\d+)(,.*)?\]", master)
    if found is None:
        return 0
    return machine_cores if found[1] == "*" else int(found[1])


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an unclosed quotation mark: Spark will say so
        return []


def _option(words: list[str], option: str, prefix: str) -> str | None:
    """The last value of an option that begins so, ``--option value`` or ``--option=value``, without the beginning."""
    values = [value for name, value in pairwise(words) if name == option]
    values += [word.removeprefix(f"{option}=") for word in words if word.startswith(f"{option}=")]
    found = [value.removeprefix(prefix) for value in values if value.startswith(prefix)]
    return found[-1] if found else None


def _default(text: str) -> str | None:
    """``spark.master`` of a properties file: name and value are divided by white space, ``=`` or ``:``."""
    found = re.findall(r"^[ \t]*spark\.master(?:[ \t]*[=:][ \t]*|[ \t]+)(\S+)", text, re.MULTILINE)
    return found[-1] if found else None
