"""Rows coming in: uploads checked and unpacked, staged batches and their commit."""
