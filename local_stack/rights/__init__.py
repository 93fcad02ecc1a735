"""What each role of template.yaml may do, asked before every call that reaches moto (rule: least-privilege-roles).

``roles`` reads the policies, ``evaluate`` decides as IAM does, ``s3_needs``, ``api_needs`` and ``rest_needs`` say which
rights a request needs, ``callers`` knows who signs with which access key and remembers what was used and what was
denied, ``denials`` answers as AWS does.  ``coverage`` tells which parts of the policies were needed.

moto has an enforcement of its own, which leaves out Conditions, knows no table buckets and fails at their signatures.
"""
