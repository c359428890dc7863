"""What Deephaven's clients ask of tables: one function per operation."""
