"""Histories read out: leases, tickets, reads and watches of journals."""
