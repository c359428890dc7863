"""Remote tables: snapshots, subscriptions, and the past out of the journal."""
