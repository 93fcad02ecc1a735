"""What a deployment costs in AWS, and what AWS's own maintenance of the same tables would (docs/costs.md)."""
