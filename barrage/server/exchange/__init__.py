"""DoExchange: streams on the event loop, subscriptions on the engine thread, what goes between."""
