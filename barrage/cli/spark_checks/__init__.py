"""What ``barrage spark doctor`` looks at."""
