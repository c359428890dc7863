"""Conditions, formulas and times as Deephaven's clients write them."""
