"""Which tables need maintenance, from metadata alone (rule: detection-reads-documents-only); and how one looks now."""
