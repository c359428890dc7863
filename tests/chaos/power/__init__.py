"""Power cuts as a black box: what a real server asked of its disk, and what a cut may leave."""
