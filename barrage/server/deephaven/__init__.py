"""The services Deephaven clients call besides Flight: sessions, tables, input tables, fields."""
