"""Ctrl-C waits until a block has ended."""

import signal
import threading

import pytest

from shardgraph.interrupt import interrupt_waits


@pytest.fixture(autouse=True)
def handler():
    """Python's own handler, there before and after."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def press_ctrl_c(times: int, done: list[str], error: OSError | None = None) -> None:
    with interrupt_waits():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        if error is not None:
            raise error
        done.append("block")


def test_ctrl_c_comes_after_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c(1, done)
    assert done == ["block"]


def test_ctrl_c_comes_after_an_error_and_tells_of_it():
    error = OSError("no process left")
    with pytest.raises(KeyboardInterrupt) as caught:
        press_ctrl_c(1, [], error)
    assert caught.value.__context__ is error


def test_pressed_twice_it_comes_at_once():
    done = []
    with pytest.raises(KeyboardInterrupt):
        press_ctrl_c(2, done)
    assert done == []


def test_a_handler_of_the_users_own_is_called():
    calls = []
    signal.signal(signal.SIGINT, lambda *args: calls.append(args[0]))
    with interrupt_waits():
        signal.raise_signal(signal.SIGINT)
        assert calls == []
    assert calls == [signal.SIGINT]
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_who_ignores_ctrl_c_ignores_it_here_too():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupt_waits():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_leave_the_handler_alone():
    seen = []

    def look() -> None:
        with interrupt_waits():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
