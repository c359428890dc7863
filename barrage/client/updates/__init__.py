"""Updates as a user sees them, and how they wait for whoever consumes them."""
