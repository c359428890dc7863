"""One server: its address, its channel, logging in, exports, and the tables it offers."""
