"""The live grid: what to subscribe to, what changed, how it is drawn; with and without a terminal."""
