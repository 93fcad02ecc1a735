"""One model of a table: what writers, passes, kills and readers do to it, and what must hold after every step.

* :mod:`.actions` is the vocabulary: verbs, each a function that does what the table it meets allows.
* :mod:`.writers` are the engines that write, :mod:`.reader` a reader that shares no code with Icekeeper.
* :mod:`.process` is a process of ours, which stands still or dies at any step, and whose store fails; :mod:`.world` the
  table and its catalog, whose answers are lost, late, doubled or wrong; :mod:`.run` what every run checks.

The configurations choose verbs, faults and what more must hold: :mod:`.history` (a table under fire), :mod:`.cleanup`
(what expiry and sweeps leave), :mod:`.ownership` (many tables that share files, over :mod:`.lake` and :mod:`.truth`)
and :mod:`.java_histories` (every type, transform and file format: Iceberg-Java writes, :mod:`.oracle` knows the rows).
"""
