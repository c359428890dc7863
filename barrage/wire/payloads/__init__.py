"""What messages of external sources contain: payloads to rows of a table, by a declared mapping."""
