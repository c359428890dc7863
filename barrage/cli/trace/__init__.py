"""What `barrage trace` makes of what a server remembers of updates."""
