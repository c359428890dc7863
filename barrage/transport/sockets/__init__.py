"""Ports: how a listener takes them, and what connections on them are called."""
