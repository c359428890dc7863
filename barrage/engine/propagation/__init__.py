"""How one producer makes its messages: feeds know what changed, message builders read values and
number rows."""
