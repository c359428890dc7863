"""Alerts: what is sent to an address when a condition upon rows becomes true."""
