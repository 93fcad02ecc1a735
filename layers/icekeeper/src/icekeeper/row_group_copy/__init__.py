"""Merges Parquet files into one by copying their row groups byte for byte; nothing is decoded or compressed.

The room knows files, not tables.  Inside it, a failed check raises ``CannotCopy``; the functions of ``merge_files``
return it as ``NotCopyable``.  A caller (compaction's ``copying``) does this:

* ``copyable.copy_target`` describes the output.  ``merge_files.copyable_file`` judges each input by its manifest entry
  and a ranged read.  It returns a small, picklable description, so that a planner can judge and a worker can copy; or
  the reason why the file must be decoded.  ``merge_files.copyable_part`` restricts a file to some of its row groups.
  ``merge_files.merge_files`` writes the new file, proves it, and returns its manifest entry.
* The caller makes sure that no delete applies to the copied rows, that all inputs have the same partition and spec,
  that rows need no sorting, and that the table's properties require no Bloom filters or page indexes that inputs lack.
  ``sort_order_id`` is not set: concatenated sorted files are not sorted.
* To keep the row ids of a v3 table, the target's schema is that of ``with_lineage``, and ``copyable_file`` needs each
  file's data sequence number.  Otherwise rows get ids from the new entry's ``first_row_id``.
* Each file is either copied or decoded.  A refused file is decoded into full-size row groups; the result can be copied
  in the same pass and in the next pass.  Copied row groups keep their size: ``min_row_group_copy_bytes`` is the least
  average size of the row groups of an input, so that an output is copyable again.
* All row groups of a new footer have the same optional fields (``footer_decisions``).  If an input has no page indexes
  or no bounds of a column, the whole output has none, so merge similar files (``CopyableFile.has_page_index``).
  Files of different nullability (``CopyableFile.nullability``) cannot share an output.
* On S3 the store may copy large ranges itself, with a different proof (``write_copy.copy_in_store``); ``merge_files``
  decides.  Streaming and copying in the store must write the same bytes for the same layout, because a store may
  complete an upload that seemed to have failed.
"""
