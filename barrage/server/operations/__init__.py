"""What operators look at and turn: metrics and health over HTTP, levels of the log, traces."""
