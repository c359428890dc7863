"""Generated protocol descriptors."""
