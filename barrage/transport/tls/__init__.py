"""TLS on either side: files, what they hold, and what a handshake that failed means."""
