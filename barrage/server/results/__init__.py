"""Results of queries that are kept for a while, at one step, and the jobs that make them."""
