"""Expires snapshots, and deletes the files that only they referenced; its role commits and deletes."""

from __future__ import annotations

from observability import function
from steps import carry_out

handle = function({"expire_snapshots": carry_out})
