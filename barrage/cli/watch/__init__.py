"""The live grid: what to subscribe to, what changed, how it is drawn, also without a terminal."""
