"""Values of the parameters of template.yaml that its conditions ask for."""

from __future__ import annotations

TABLES = {
    "DiscoverTableBuckets": ("false", "true"),
    "TableBucketArns": ("", "arn:aws:s3tables:eu-central-1:123456789012:bucket/lake"),
    "DataBucketArns": ("", "arn:aws:s3:::lake"),
    "GlueDataCatalogArns": ("", "arn:aws:glue:eu-central-1:123456789012:database/sales"),
    "KmsKeyArns": ("", "arn:aws:kms:eu-central-1:123456789012:key/1"),
}
"""These decide which policies there are and what they hold."""
SINGLE = {
    "BucketFilter": "lake*",
    "NamespaceFilter": "sales",
    "TableFilter": "orders*",
    "ShortestSnapshotRetentionHours": "24",
    "FewestSnapshotsToKeep": "3",
    "ShortestOrphanGraceHours": "48",
    "AllowedPrefixes": "lake.sales=s3://lake/sales/",
    "RequestsMay": "expire_partitions,partition_retention_hours",
    "MaxUnpackedMb": "512",
    "MaintenanceEnabled": "false",
    "GlueConnection": "lake-network",
    "AlarmTopicArn": "arn:aws:sns:eu-central-1:123456789012:alarms",
    "ScheduleState": "ENABLED",
    "ArtifactKmsKeyArn": "arn:aws:kms:eu-central-1:123456789012:key/2",
    "ControlBucketKmsKeyArn": "arn:aws:kms:eu-central-1:123456789012:key/3",
    "StateTableKmsKeyArn": "arn:aws:kms:eu-central-1:123456789012:key/4",
    "LogsKmsKeyArn": "arn:aws:kms:eu-central-1:123456789012:key/5",
    "PermissionsBoundaryArn": "arn:aws:iam::123456789012:policy/boundary",
}
"""A value of every other parameter that a condition asks for, each by itself."""
VPC = {"VpcSubnetIds": "subnet-0a1b2c3d,subnet-4e5f6a7b", "VpcSecurityGroupIds": "sg-0a1b2c3d"}
"""These two go together."""
