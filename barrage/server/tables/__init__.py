"""What can be done with tables from outside the engine thread, for every door."""
