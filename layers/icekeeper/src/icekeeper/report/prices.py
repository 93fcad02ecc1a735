"""AWS's list prices, by which savings are estimated: us-east-1, November 2026, without free tiers and discounts."""

STORED_GB_MONTH_USD = 0.023
"""Amazon S3 pricing, S3 Standard: a GB for a month, of the first 50 TB."""
