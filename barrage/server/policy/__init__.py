"""Who may do what with which tables, and what of them is shown: rules, and a gate."""
