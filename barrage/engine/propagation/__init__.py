"""Who is told what and when: one producer per table, its intervals, and readers that lag behind."""
