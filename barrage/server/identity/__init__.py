"""Who calls, and how that is proven: what stands behind the guard of every door."""
