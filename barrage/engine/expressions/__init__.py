"""Expressions: text or tree, bound to a schema, evaluated on whole columns, in both dialects."""
