"""How a table is shown to whom: schemas and types on the wire."""
