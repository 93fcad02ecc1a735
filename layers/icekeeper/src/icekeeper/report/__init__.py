"""Outcomes and costs, as JSON for programs and as text for people."""
