"""Loops that end while gRPC still has something for them."""

from __future__ import annotations

import types

import pytest

from barrage.transport.event_loop import EventLoop


def of_grpc() -> types.FunctionType:
    def callback() -> None:
        raise AssertionError("nobody is there")

    callback.__module__ = "grpc._cython.cygrpc"
    return callback


def test_what_grpc_has_for_a_closed_loop_is_ignored():
    loop = EventLoop()
    loop.close()
    assert loop.call_soon_threadsafe(of_grpc()).cancelled()


def test_anybody_else_is_told_that_the_loop_is_closed():
    loop = EventLoop()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon_threadsafe(print)


def test_what_comes_in_time_is_run():
    loop, ran = EventLoop(), []
    loop.call_soon_threadsafe(ran.append, 1)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    assert ran == [1]
