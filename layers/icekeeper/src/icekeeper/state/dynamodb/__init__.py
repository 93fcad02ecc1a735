"""State in one DynamoDB table, for deployments in AWS."""
