"""One module for each object with more than one caller; see the package above."""
