"""The changes of one table on their way out: kept, planned by view, made into messages."""
