"""Choosing a device, and the calls of the stream backend, against a recording torch module."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from shardgraph.prefetch import DevicePrefetcher
from shardgraph.prefetch.transfer import (
    BlockingBackend,
    StreamBackend,
    backend_for,
    resolve_device,
)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)


@pytest.fixture
def no_accelerator(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.usefixtures("no_accelerator")
@pytest.mark.parametrize("device", ["cuda", "cuda:3", "xpu", "mps", "meta", torch.device("cuda:0")])
def test_an_absent_device_is_refused_by_name(device):
    with pytest.raises(ValueError, match=f"device '{device}' is not there: .* can use cpu"):
        DevicePrefetcher([], device)


@pytest.mark.usefixtures("no_accelerator")
def test_without_an_accelerator_none_is_the_cpu():
    assert DevicePrefetcher([]).device == torch.device("cpu")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("device", "resolved"),
    [(None, "cuda:1"), ("cuda", "cuda:1"), ("cuda:0", "cuda:0"), ("cpu", "cpu")],
)
def test_devices_are_resolved_with_their_index(device, resolved):
    assert resolve_device(device) == torch.device(resolved)


@pytest.mark.usefixtures("two_gpus")
def test_an_index_too_high_is_refused_with_what_is_there():
    with pytest.raises(ValueError, match=r"'cuda:2' is not there: .* cuda:0, cuda:1, cpu"):
        resolve_device("cuda:2")


def test_the_kind_of_backend_follows_the_device():
    assert isinstance(backend_for(torch.device("cuda", 1)), StreamBackend)
    assert isinstance(backend_for(torch.device("xpu", 0)), StreamBackend)
    assert isinstance(backend_for(torch.device("mps", 0)), BlockingBackend)
    assert isinstance(backend_for(torch.device("cpu")), BlockingBackend)


class Stream:
    def __init__(self, log, name):
        self.log, self.name = log, name

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for stream {other.name}")

    def wait_event(self, event):
        self.log.append(f"{self.name} waits for {event.name}")

    def synchronize(self):
        self.log.append(f"host waits for {self.name}")


class Event:
    def __init__(self, log, options, number):
        self.log, self.options, self.name = log, options, f"event {number}"
        self.done = False

    def record(self, stream):
        self.log.append(f"{self.name} recorded on {stream.name}")

    def synchronize(self):
        self.log.append(f"host waits for {self.name}")

    def query(self):
        return self.done

    def elapsed_time(self, later):
        return 2.5 if later.name == "event 1" else -1.0


@pytest.fixture
def runtime(monkeypatch):
    """A recording stand-in for torch.cuda; ``current`` is the stream the caller has chosen."""
    fake = SimpleNamespace(log=[], events=[], options=[])
    fake.current = Stream(fake.log, "consumer")

    def make_stream(device):
        fake.log.append(f"stream made on {device}")
        return Stream(fake.log, "copy")

    def make_event(**options):
        fake.events.append(Event(fake.log, options, len(fake.events) + 1))
        return fake.events[-1]

    @contextmanager
    def entered(what):
        fake.log.append(f"enter {getattr(what, 'name', what)}")
        yield

    def current_stream(device):
        assert device == torch.device("cuda", 1)
        return fake.current

    monkeypatch.setattr(torch.cuda, "Stream", make_stream)
    monkeypatch.setattr(torch.cuda, "Event", make_event)
    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "device", entered)
    return fake


class Block:
    def __init__(self, log):
        self.log = log

    def record_stream(self, stream):
        self.log.append(f"block kept for {stream.name}")


def test_one_stream_on_the_target_waits_for_the_consumer_at_each_epoch(runtime):
    backend = StreamBackend(torch.device("cuda", 1))
    assert runtime.log == []
    backend.begin_epoch()
    backend.begin_epoch()
    assert runtime.log == [
        "stream made on cuda:1",
        "copy waits for stream consumer",
        "copy waits for stream consumer",
    ]


def test_the_thread_makes_device_and_copy_stream_current(runtime):
    backend = StreamBackend(torch.device("cuda", 1))
    backend.begin_epoch()
    runtime.log.clear()
    with backend.thread_context():
        pass
    with backend.consumer_context():
        pass
    assert runtime.log == ["enter cuda:1", "enter copy", "enter consumer"]


def test_the_hand_over_waits_and_keeps_on_the_stream_current_at_that_time(runtime):
    backend = StreamBackend(torch.device("cuda", 1))
    backend.begin_epoch()
    runtime.log.clear()
    copied = backend.record()
    runtime.current = Stream(runtime.log, "side")
    backend.wait(copied)
    backend.keep([Block(runtime.log), Block(runtime.log)])
    backend.host_wait(copied)
    backend.synchronize()
    assert runtime.log == [
        "event 1 recorded on copy",
        "event 2 recorded on side",
        "side waits for event 1",
        "block kept for side",
        "block kept for side",
        "host waits for event 1",
        "host waits for side",
    ]
    assert [event.options for event in runtime.events] == [
        {"enable_timing": True, "blocking": True}
    ] * 2


def test_a_device_wait_is_known_when_both_events_are_reached(runtime):
    backend = StreamBackend(torch.device("cuda", 1))
    backend.begin_epoch()
    probe = backend.wait(backend.record())
    assert backend.stalled_seconds(probe) is None
    for event in runtime.events:
        event.done = True
    assert backend.stalled_seconds(probe) == 0.0025
    # A copy that was done before the consumer asked is no wait.
    late = backend.wait(backend.record())
    for event in runtime.events:
        event.done = True
    assert backend.stalled_seconds(late) == 0.0


def test_blocking_copies_are_complete_and_need_no_hand_over():
    backend = BlockingBackend(torch.device("cpu"))
    tensor = torch.arange(3)
    assert backend.to_device(tensor, non_blocking=True) is tensor
    assert backend.holds(tensor)
    assert not backend.is_pinned(tensor)
    assert backend.pinned_buffer(5).shape == (5,)
    assert backend.wait(backend.record()) is None
    assert backend.stalled_seconds(None) == 0.0
