"""Before a table is derived: the plan, what the work costs, making it beside the engine thread."""
