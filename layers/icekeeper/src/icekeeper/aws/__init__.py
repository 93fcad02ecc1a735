"""The AWS identity, region and endpoint that a catalog, a store or the state store uses."""
