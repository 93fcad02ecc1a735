"""Which AWS identity, region and endpoint a catalog, a store or the state uses; all other rooms ask this one."""
