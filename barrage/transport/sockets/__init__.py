"""Ports, and how a listener takes them."""
