"""The source against a worker in this process."""

import asyncio

from barrage.connector import WorkerDelivery, run_sources
from barrage.connector.local_worker import LocalWorker
from {{ cookiecutter.package }}.source import Lines


def test_lines_arrive(tmp_path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\n")

    async def scene() -> None:
        async with LocalWorker() as worker:
            source = Lines(str(path))
            await run_sources(source, WorkerDelivery(worker.address, program="lines"))
            assert worker.messages == {source.name: [(1, b"one"), (2, b"two")]}
            # What is there is not sent again.
            worker.cut()
            await run_sources(source, WorkerDelivery(worker.address, program="lines"))
            assert len(worker.messages[source.name]) == 2

    asyncio.run(scene())
