"""What `barrage top` shows: a picture of a server from its tables about itself."""
