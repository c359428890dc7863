"""Calls over gRPC: TCP, TLS, and sockets of the file system."""
