"""Tables in which the server tells about itself."""
