"""AWS's list prices in US dollars, from which costs and savings are estimated on every store.

Region us-east-1, November 2026, without free tiers and discounts.  On other storage they stand for the time that the
same work takes.
"""

from fractions import Fraction

GETS_1000_USD = Fraction(4, 10_000)
"""Amazon S3 pricing, S3 Standard: 1,000 GET requests."""
PUTS_1000_USD = Fraction(5, 1000)
"""Amazon S3 pricing, S3 Standard: 1,000 PUT, COPY, POST and LIST requests."""
SCANNED_GB_USD = Fraction(5, 1000)
"""Amazon Athena pricing: to read a GB (2^30) in a query."""
REWRITTEN_GB_USD = Fraction(5, 1000)
"""Amazon S3 pricing, "S3 Tables maintenance": a GB that binpack compaction processes."""
COPIED_GB_USD = REWRITTEN_GB_USD / 5
"""A GB whose row groups are copied as they are, which takes a fifth of the CPU (docs/performance.md)."""
STORED_GB_MONTH_USD = 0.023
"""Amazon S3 pricing, S3 Standard: a GB for a month, of the first 50 TB."""
