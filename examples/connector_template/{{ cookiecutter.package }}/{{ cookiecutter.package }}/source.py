"""Lines of a file; the id of a message is the number of its line."""

import sys

from barrage.connector import MessageBatch, SyncSource, WorkerDelivery, run_sources_blocking


class Lines(SyncSource):
    """A file that does not change while it is read."""

    def __init__(self, path: str) -> None:
        self.name = f"lines:{path}"
        self.path = path

    def read_blocking(self, after: int | None):
        with open(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                if number > (after or 0):
                    yield MessageBatch(ids=[number], payloads=[line.rstrip(b"\n")])


def main() -> None:
    path, address = sys.argv[1:]
    run_sources_blocking(Lines(path), WorkerDelivery(address, program="lines"))
