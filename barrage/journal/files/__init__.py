"""History in files: segments, checkpoints, commit points, and what a crash leaves of them."""
