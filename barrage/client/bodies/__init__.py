"""Bodies of record batches outside their stream: channels, receivers, releases, whole frames."""
