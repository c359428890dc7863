"""The methods of Arrow Flight, one file per family."""
