"""What a server is told: settings and JSON fields, each checked against its type."""
