"""``verify --deep`` finds no problem in sound files of any type, and exactly the entry that was made wrong."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import parse_transform
from pyiceberg.types import LongType
from pyroaring import BitMap64

from icekeeper.metadata.types import encode
from icekeeper.model import DataFile, FileContent
from icekeeper.operations.compaction.terms.write_properties import metrics_modes
from icekeeper.operations.compaction.work.file_entry import PassingCounts, entry_of_file
from icekeeper.rows.arrow_schema import arrow_schema
from icekeeper.rows.read_task import InputFile, ReadTask
from icekeeper.verification.checks import ProblemKind
from icekeeper.verification.deep import RowIds
from icekeeper.verification.read_files import FilesToRead, ReadFile, read_files
from icekeeper.verification.row_checks import ColumnFacts, metric_notes, vector_notes
from support.values import DOMAINS
