"""A model of a table under writers, passes, kills and readers, with invariants after every step.

* :mod:`.actions` has the verbs, each a function that does what the table allows.
* :mod:`.writers` has the writing engines, :mod:`.reader` a reader that shares no code with Icekeeper.
* :mod:`.process` is a process of Icekeeper, which pauses or dies at any step, and whose store fails; :mod:`.world` has
  the table and its catalog, whose answers are lost, late, doubled or wrong; :mod:`.run` has the checks of every run.

The configurations choose verbs, faults and further invariants: :mod:`.history` (a table under fire), :mod:`.cleanup`
(files after expiry and sweeps), :mod:`.ownership` (many tables that share files, over :mod:`.lake` and :mod:`.truth`)
and :mod:`.java_histories` (every type, transform and file format: Iceberg-Java writes, :mod:`.oracle` knows the rows).
"""
