"""Calls over WebSockets: HTTP/1.1 as far as it takes to get one, and the two protocols spoken on
it."""
