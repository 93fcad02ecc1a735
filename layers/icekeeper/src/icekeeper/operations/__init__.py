"""The operations of a pass; each has its plan and its part of the work, and none knows another."""
