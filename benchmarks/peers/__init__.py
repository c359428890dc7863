"""Scripts for benchmarks against Deephaven's server and client, each a process of its own.

They speak JSON lines: one command (a list) per line on stdin, one object per answer on stdout.
"""
