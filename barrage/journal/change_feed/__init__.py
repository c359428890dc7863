"""History on its way out: entries and states as rows with their change."""
