"""The asyncio client for callers without a loop."""
