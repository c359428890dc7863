"""Rows to a server: any form as Arrow, DoPut with acknowledgements, writers that lose nothing."""
