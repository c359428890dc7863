"""Sans-IO state machines of the exchange: frames in, events out."""
