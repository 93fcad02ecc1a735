"""Makes one Parquet file of several by copying their row groups byte for byte; nothing is decoded or compressed.

Measured with ``benchmarks/row_group_copy.py`` (200 files, 400 MB, 10 columns, one output, warm, a busy machine of two
cores, medians of three): 2.6 times the CPU of ``cat`` and 3.2 times its wall time, proof included, where decoding and
encoding with plain pyarrow takes 11.4 and 13.4 times.  Half of what ``cat`` does not do is two checksums of every byte.
A column chunk costs about 0.1 ms besides, so that 2,000 columns in row groups of 16 MB take five times as long.

With ``--store`` (20 files, 395 MB, SeaweedFS behind 20 ms a request, a machine busier still): where the store copies,
0.8 % of the data pass through us, in 0.7 CPU s; streaming passes 301 % (read, written, read back), with three to four
times the CPU and twice the wall time, and up to 1.7 times longer without reading ahead.

Row ids and last changes of a v3 table, encoded for every row and decoded for the proof, double that: in one run of 100
such files, 200 MB, 5,000,000 rows, on a machine with a load above 20, the copy took 5.4 times the CPU of ``cat``, with
them 10.3 times, and decoding without them 27.9 times.  They are about 0.12 µs a row, whatever else is in it.

For who calls it (compaction does, in ``operations/compaction/copying``):

* ``copyable.copy_target`` says what outputs must be; ``merge.copyable_file`` judges each input by its manifest entry
  and one ranged read, and answers with a reason where it must be decoded; ``merge.merge_files`` writes, proves and
  describes the new file.  What was judged is small and picklable: a planner may judge, a worker copy.
* Rows that have ids keep them if the target's schema is that of ``rows.lineage.with_lineage``; ``copyable_file`` then
  needs each file's data sequence number.  Without it rows would take ids from a new entry's ``first_row_id``.
* ``CopyableFile.groups`` says of each row group which positions and bytes it has; ``merge.copyable_part`` restricts a
  file to some of them, where deletes touch the others.  The entry stays that of the whole file.
* The room knows files, not tables.  The caller sees to it that no delete applies to what is copied, that all have the
  same partition and spec, that no rows are to be sorted, and that the table's properties ask for no Bloom filters or
  pages that the inputs lack.  ``sort_order_id`` is not set: runs one after the other are not sorted.
* Files of one table differ, so copying and decoding are chosen by file, not by group.  What is refused is decoded into
  row groups of full size; a file made so can be copied beside the others, in the same pass and in the next.
* Of a new footer all row groups say the same things (``footer_decisions``).  Inputs without page indexes, or without
  bounds of a column, cost the others of their output theirs: who can choose puts like to like
  (``CopyableFile.has_page_index``).
* Files that require values in other columns (``CopyableFile.nullability``) cannot share an output; what we decode
  requires what the table requires.
* Small row groups stay small.  ``min_row_group_copy_bytes`` bounds the average of a file, so that an output of copyable
  files is copyable again.
* Reading back for the proof costs as many bytes again.  Where the inputs and the output are on S3 and large, the store
  copies (``store_copy``), with a proof of its own (``store_proof``); ``merge_files`` decides.  ``write_copy`` and
  ``store_copy`` must write the same bytes for one layout: a store may complete an upload that seemed to have failed.
  What is written between the ranges of inputs makes a part of 5 MiB there; it costs less behind all of them.
"""
