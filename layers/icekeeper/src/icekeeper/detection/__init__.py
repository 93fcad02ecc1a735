"""Which tables need maintenance, found from metadata alone (rule: detection-reads-documents-only)."""
