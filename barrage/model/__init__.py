"""The common language of wire and engine: viewports, updates, coalescing, the replica."""
