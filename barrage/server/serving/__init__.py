"""One serving instance: put together, started, drained, stopped."""
