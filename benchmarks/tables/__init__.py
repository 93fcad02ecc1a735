"""The tables that contestants work on: made once, kept in the work folder, set back before every run."""
