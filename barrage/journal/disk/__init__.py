"""Bytes on the disk: files with all their failures, records with checksums, and room for more."""
