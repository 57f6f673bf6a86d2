"""Which tokens' KV is where: block pool, radix tree, leases. Ids only, no torch."""
