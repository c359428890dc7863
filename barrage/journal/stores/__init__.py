"""Journals at work: the queue, the writer, upkeep, in files or in memory."""
