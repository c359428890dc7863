"""Operators: tables derived from other tables, one file each."""
