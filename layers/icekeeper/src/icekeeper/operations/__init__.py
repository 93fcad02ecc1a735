"""The operations of a pass; each has its own plan and work, and no operation imports another."""
