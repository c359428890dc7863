"""What pages ask and keep: who calls, the sessions of browsers, saved boards."""
