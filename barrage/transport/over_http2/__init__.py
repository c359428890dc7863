"""gRPC served over HTTP/2 of our own: the frames of messages in a fast lane, the protocol by
h2."""
