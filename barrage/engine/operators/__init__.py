"""Operators: tables derived from one parent table, one file each."""
