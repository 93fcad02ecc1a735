"""The cycle as a process, without AWS: every interval, detect, maintain and report (``icekeeper run``)."""
