"""Rows by group: which group a row is in, and what is kept and computed for each."""
