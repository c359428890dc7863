"""What a journal says: cycles, identities and states of tables, as values and as bytes."""
