"""Which tokens' KV is where, in block ids: block pool, radix tree, leases. No torch."""
