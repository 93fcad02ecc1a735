"""What each role of template.yaml may do, checked before every call to moto (rule: least-privilege-roles).

``roles`` reads the policies, ``evaluate`` decides like IAM, ``s3_needs``, ``api_needs`` and ``rest_needs`` list the
rights that a request needs, ``callers`` maps access keys to roles and records used and denied rights, ``denials``
answers like AWS.  ``coverage`` reports which parts of the policies were needed.

moto's own enforcement ignores Conditions, does not know table buckets and fails on their signatures.
"""
