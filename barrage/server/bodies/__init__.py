"""Bodies outside their streams: memory, channels, UCX, and the writer of one stream."""
