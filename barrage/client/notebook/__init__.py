"""Tables in notebooks: the grid in the output of a cell, fed by the kernel, and what is there
instead where there is no kernel."""
