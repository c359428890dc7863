"""State machines of the connector protocol, without IO: a worker's sessions and the streams they
share, and a source's session."""
