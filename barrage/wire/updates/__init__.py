"""Whole updates to Flight messages and back."""
