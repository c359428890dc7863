"""The journal: what happened to a table, cycle by cycle, on disk or in memory.

It receives :class:`~barrage.model.table_change.TableChange` values and knows nothing of the engine
that made them. docs/journal.md has the format and the guarantees.
"""
