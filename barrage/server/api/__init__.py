"""The Python API: servers, published tables and their past."""
