"""A Spark query over a table that never rests, while everything around it is killed. In the end
it has the rows of the table, and its feed had no row twice and missed none (the oracle in
``apply_feed`` sees both)."""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="needs PySpark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

from tests.chaos.spark_scene import Scene  # noqa: E402
from tests.helpers.server_process import wait_until  # noqa: E402


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def test_a_driver_killed_at_every_point_of_a_batch(tmp_path: Path) -> None:
    with Scene(tmp_path, is_durable=False) as scene:
        scene.start_server()
        scene.start_driver()
        scene.wait_for_batches(2)
        for is_written in (False, True):
            # Logged and not written; then written, and Spark does not know.
            scene.wait_for_window(is_written=is_written)
            scene.kill_driver()
            scene.start_driver()
            scene.wait_for_batches(1)
        pause(0.37)
        scene.kill_driver()
        scene.start_driver()
        scene.check_equal()
        assert scene.failures() == []


def test_workers_killed_and_the_server_killed_in_the_middle_of_batches(tmp_path: Path) -> None:
    with Scene(tmp_path, is_durable=True) as scene:
        scene.start_server()
        scene.start_driver()
        scene.wait_for_batches(2)
        killed = 0
        for _ in range(3):
            scene.wait_for_window(is_written=False)
            killed += scene.kill_one("pyspark.daemon", is_forked=True)
            scene.wait_for_batches(1)
        assert killed > 0
        for _ in range(3):
            scene.wait_for_window(is_written=False)
            scene.kill_server()
            scene.start_server()
            scene.wait_for_batches(2)
        scene.check_equal()
        # Without the process that asks the questions a query fails, and is started again.
        wait_until(
            lambda: (
                scene.kill_one("python_streaming_source_runner", is_forked=False)
                or scene.kill_one("python_streaming_source_runner", is_forked=True)
            ),
            timeout=20,
        )
        wait_until(lambda: len(scene.failures()) > 0, timeout=60)
        scene.wait_for_batches(1)
        scene.check_equal()


def test_history_lost_and_checkpoint_lost_and_going_on(tmp_path: Path) -> None:
    with Scene(tmp_path, is_durable=False, failOnDataLoss="false") as scene:
        scene.start_server()
        scene.start_driver()
        scene.wait_for_batches(2)
        # A new epoch while the query runs, then one while it is down.
        scene.wait_for_window(is_written=False)
        scene.kill_server()
        scene.start_server()
        scene.wait_for_batches(3)
        scene.check_equal()
        scene.wait_for_window(is_written=True)
        scene.kill_driver()
        scene.kill_server()
        scene.start_server()
        scene.start_driver()
        scene.wait_for_batches(2)
        scene.check_equal()
        scene.kill_driver()
        scene.new_query()
        scene.start_driver()
        scene.wait_for_batches(2)
        scene.check_equal()


def test_a_new_epoch_ends_a_query_that_must_not_lose(tmp_path: Path) -> None:
    with Scene(tmp_path, is_durable=False) as scene:
        scene.start_server()
        scene.start_driver()
        scene.wait_for_batches(2)
        scene.kill_server()
        scene.start_server()
        wait_until(scene.is_over, timeout=60)
        assert "failOnDataLoss=false" in scene.failures()[-1]
