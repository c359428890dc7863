"""Following tables of other servers and serving them on, under the same names, epochs, steps."""
