"""Options and running of `barrage connect`."""
