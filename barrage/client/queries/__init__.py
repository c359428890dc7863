"""Operators chained to a remote table, written for our servers and for Deephaven's."""
