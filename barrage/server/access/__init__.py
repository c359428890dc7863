"""Who calls and what they reach: credentials, sessions, exports, tickets, the guard of calls."""
