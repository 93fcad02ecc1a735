"""What every operation of a pass receives: stores and catalogs, settings, and the running job."""
