"""Histories of tables as the engine thread feeds them: opened, begun, written."""
