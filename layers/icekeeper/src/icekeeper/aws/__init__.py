"""Which AWS identity, region and endpoint a catalog, a store or the state uses: everybody else asks this room."""
