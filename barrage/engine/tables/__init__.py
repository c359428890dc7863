"""Tables to read, the sources written from outside, and the graph that moves all by steps."""
