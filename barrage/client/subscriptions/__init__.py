"""Ticking tables: what is asked for, the state shown, resume, and who follows."""
