"""What the command line has to do with TLS: options, and certificates for trying."""
