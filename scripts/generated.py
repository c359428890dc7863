"""Writes every file that follows from others and stands in the repository as code, so that editors
and type checkers see it: ``make generated``. A test holds the files against what this program would
write."""

from __future__ import annotations

from scripts import operator_methods, sync_client, sync_publisher
from scripts.writing import formatted

TEXTS = operator_methods.TEXTS | sync_publisher.TEXTS | sync_client.TEXTS
"""The files and what makes them."""

if __name__ == "__main__":
    for path, text in TEXTS.items():
        path.write_text(formatted(path, text()))
