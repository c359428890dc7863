"""What browsers get: the page that comes with the server, over plain HTTP, and the door through
which pages call it."""
