import time

import pytest
import torch
from torch_geometric.data import Data

from shardgraph import DatasetWriter, GraphLoader, ShardedDataset
from shardgraph.prefetch import DevicePrefetcher, measure_waits
from shardgraph.prefetch import report as report_module
from shardgraph.prefetch.report import duration, report, verdict
from shardgraph.prefetch.stats import NUM_RECENT, Recorder, Timing, percentile, split_wait

pytestmark = pytest.mark.alone


@pytest.mark.parametrize(
    ("asked", "got", "read", "copy"),
    [
        pytest.param(0.0, 10.0, 3.0, 2.0, id="all_of_it"),
        pytest.param(3.0, 10.0, 1.0, 2.0, id="from_within_the_read"),
        pytest.param(5.5, 10.0, 0.0, 1.5, id="from_within_the_copy"),
        pytest.param(7.0, 10.0, 0.0, 0.0, id="after_it_was_ready"),
    ],
)
def test_a_wait_is_split_by_what_the_thread_was_doing(asked, got, read, copy):
    timing = Timing(read_start=1.0, read_stop=4.0, move_start=5.0, ready=7.0)
    assert split_wait(asked, got, timing) == (read, copy)


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, 0.0),
        ([3.0], 0.99, 3.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([float(k) for k in range(1, 101)], 0.99, 99.0),
        ([float(k) for k in range(1, 101)], 0.95, 95.0),
    ],
)
def test_percentiles_are_values_that_occurred(values, share, expected):
    assert percentile(values, share) == expected


def recorded(steps, *, depth=2):
    """A recorder of one epoch whose steps are (asked, read, copy, hand-over, own work) seconds."""
    recorder = Recorder(depth)
    recorder.start_epoch()
    clock = 0.0
    for read, copy, hand_over, work in steps:
        got = clock + read + copy
        done = got + hand_over
        timing = Timing(
            read_start=clock, read_stop=clock + read, move_start=clock + read, ready=got
        )
        recorder.add_step(clock, got, done, timing, 1000, 1)
        clock = done + work
    return recorder


def test_the_sums_of_an_epoch():
    stats = recorded([(4.0, 1.0, 0.5, 2.0), (1.0, 0.5, 0.5, 2.0), (0.0, 0.0, 0.25, 2.0)]).snapshot()
    assert stats.num_batches == 3
    assert stats.num_epochs == 1
    assert stats.nbytes == 3000
    assert stats.wall_seconds == 5.5 + 2 + 2 + 2 + 0.25
    assert (stats.wait.total, stats.first_wait_seconds) == (7.75, 5.5)
    assert (stats.read.total, stats.copy.total, stats.hand_over.total) == (5.0, 1.5, 1.25)
    # Percentiles and maxima leave the start of the epoch out.
    assert (stats.wait.p50, stats.wait.p99, stats.wait.max) == (0.25, 2.0, 2.0)
    assert (stats.read.max, stats.copy.max, stats.hand_over.max) == (1.0, 0.5, 0.5)
    assert stats.starved_share == 7.75 / 11.75
    assert stats.step_seconds == 2.0
    assert stats.seconds_per_batch == (11.75 - 5.5) / 2
    assert stats.bytes_per_second == 3000 / 11.75
    assert (stats.loader_seconds, stats.move_seconds) == (5.0, 1.5)
    assert stats.mean_ready == 1.0
    assert stats.waits == (5.5, 2.0, 0.25)


def test_the_time_between_epochs_does_not_count():
    recorder = recorded([(1.0, 0.0, 0.0, 100.0)])
    recorder.start_epoch()
    timing = Timing(read_start=0.0, read_stop=0.0, move_start=0.0, ready=0.0)
    recorder.add_step(500.0, 501.0, 501.0, timing, 0, 0)
    stats = recorder.snapshot()
    assert (stats.wall_seconds, stats.first_wait_seconds, stats.num_epochs) == (2.0, 2.0, 2)


def test_memory_is_bounded():
    stats = recorded([(0.0, 0.0, 1e-6, 1e-3)] * (NUM_RECENT + 500)).snapshot()
    assert stats.num_batches == NUM_RECENT + 500
    assert len(stats.waits) == NUM_RECENT


def test_nothing_measured_is_all_zeros():
    stats = DevicePrefetcher([], "cpu").stats
    assert (stats.starved_share, stats.bytes_per_second, stats.step_seconds) == (0.0, 0.0, 0.0)
    assert (stats.wait.p50, stats.wait.max, stats.seconds_per_batch) == (0.0, 0.0, 0.0)
    assert (stats.loader_seconds_per_batch, stats.waits) == (0.0, ())


class Paced:
    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds

    def __iter__(self):
        for _ in range(self.count):
            time.sleep(self.seconds)
            yield torch.zeros(1000, dtype=torch.uint8)


def test_a_slow_loader_is_seen_as_reading(monkeypatch):
    monkeypatch.setattr(report_module, "_ENOUGH_SECONDS", 0)
    prefetcher = DevicePrefetcher(Paced(20, 0.01), "cpu")
    for _ in prefetcher:
        time.sleep(0.002)
    stats = prefetcher.stats
    assert stats.num_batches == 20
    assert stats.nbytes == 20_000
    assert 0.006 < stats.wait.p50 < 0.02
    assert stats.read.total > 0.9 * stats.wait.total
    assert stats.starved_share > 0.6
    assert stats.mean_ready < 0.5
    assert "the loader is the bottleneck" in prefetcher.report()


def test_a_slow_consumer_never_waits():
    prefetcher = DevicePrefetcher(Paced(50, 0.0), "cpu", depth=3)
    for _ in prefetcher:
        time.sleep(0.002)
    stats = prefetcher.stats
    assert stats.wait.p50 <= 50e-6
    assert stats.mean_ready > 2
    assert stats.max_ahead == 3
    assert "the data keeps up" in prefetcher.report()


def test_stats_can_be_read_during_a_loop():
    prefetcher = DevicePrefetcher(range(5), "cpu")
    assert [prefetcher.stats.num_batches for _ in prefetcher] == [1, 2, 3, 4, 5]


class Options:
    """A loader of which only the options matter."""

    def __init__(self, **options):
        vars(self).update(options)


KEEPS_UP = [(0.1, 0.0, 0.0, 1.0)] + [(0.0, 0.0, 20e-6, 5e-3)] * 2000
READS = [(0.01, 0.0, 0.0, 5e-3)] * 100
UNEVEN = ([(0.0, 0.0, 20e-6, 5e-3)] * 9 + [(0.02, 0.0, 0.0, 5e-3)]) * 20
COPIES = [(0.0, 0.01, 0.0, 5e-3)] * 100
HANDS_OVER = [(0.0, 0.0, 0.01, 5e-3)] * 100
STARTS = [(10.0, 0.0, 0.0, 5e-3)] + [(0.0, 0.0, 20e-6, 5e-3)] * 100


@pytest.mark.parametrize(
    ("steps", "options", "expected"),
    [
        pytest.param([], {}, "nothing measured yet", id="empty"),
        pytest.param(KEEPS_UP, {}, "the data keeps up: median wait 20 us", id="keeps_up"),
        pytest.param(
            READS,
            {"num_workers": 0},
            "the loader is the bottleneck: 67% of the time starved; try num_workers=2 instead of 0",
            id="no_workers",
        ),
        pytest.param(
            READS,
            {"num_workers": 3},
            "the loader is the bottleneck: 67% of the time starved; try num_workers=4 instead of 3",
            id="some_workers",
        ),
        pytest.param(
            READS,
            {"num_workers": 4, "plan": Options(order="full")},
            "starved; try shuffle='window'",
            id="full_shuffle",
        ),
        pytest.param(READS, {"num_workers": 4}, "starved; try reading fewer", id="all_workers"),
        pytest.param(
            READS,
            {"num_workers": 0, "dataset": Options(transform=abs)},
            "starved; the dataset's transform runs graph by graph: give it as GraphLoader(batch_tr",
            id="transform",
        ),
        pytest.param(READS, {}, "starved; try reading fewer", id="any_iterable"),
        pytest.param(UNEVEN, {}, "fast enough on average but uneven, so try depth=4", id="uneven"),
        pytest.param(
            COPIES,
            {"num_workers": 1, "pin_memory": False},
            "the copy to the device is the bottleneck: 67% of the time starved; try pin_memory",
            id="unpinned",
        ),
        pytest.param(COPIES, {}, "the copy to the device is the bottleneck", id="copies"),
        pytest.param(HANDS_OVER, {}, "handing batches over is the bottleneck", id="hand_over"),
        pytest.param(
            STARTS,
            {"num_workers": 2},
            "the start of each epoch is the bottleneck: 95% of the time starved; "
            "try persistent_workers=True",
            id="starts",
        ),
        pytest.param(
            STARTS,
            {"num_workers": 2, "persistent_workers": True},
            "try longer epochs",
            id="starts_persistent",
        ),
    ],
)
def test_the_verdict_names_the_cause_and_the_next_thing_to_try(
    steps, options, expected, monkeypatch
):
    monkeypatch.setattr("shardgraph.prefetch.report._num_cores", lambda: 4)
    assert expected in verdict(recorded(steps).snapshot(), Options(**options))


def test_a_graph_loader_says_what_the_verdict_asks_for(tmp_path, monkeypatch):
    monkeypatch.setattr("shardgraph.prefetch.report._num_cores", lambda: 0)
    with DatasetWriter(tmp_path) as writer:
        for n in range(1, 4):
            writer.write(Data(x=torch.ones(n, 1)))
    stats = recorded(READS).snapshot()
    for shuffle, transform, expected in (
        ("full", None, "try shuffle='window'"),
        ("window", None, "try reading fewer"),
        ("full", torch.clone, "graph by graph"),
    ):
        dataset = ShardedDataset(tmp_path, transform=transform)
        assert expected in verdict(stats, GraphLoader(dataset, 2, shuffle=shuffle))


def test_no_advice_is_given_from_a_moment():
    prefetcher = DevicePrefetcher(Paced(3, 0.02), "cpu")
    list(prefetcher)
    assert "is too short to tell why; run a second or more" in prefetcher.report()


def test_a_wait_of_the_device_is_part_of_the_verdict(monkeypatch):
    monkeypatch.setattr(report_module, "_ENOUGH_SECONDS", 0)
    recorder = recorded([(0.0, 0.0, 20e-6, 5e-3)] * 100)
    for _ in range(100):
        recorder.add_probe(5e-3, lambda seconds: seconds)
    stats = recorder.snapshot()
    assert stats.device_wait_seconds == pytest.approx(0.5)
    assert "the copy to the device is the bottleneck" in verdict(stats, Options())


def test_the_report_is_a_table_and_a_verdict():
    assert report(
        recorded([*READS, (0.01, 0.0, 0.0, 5e-3)]).snapshot(), Options(num_workers=10**6)
    ).split("\n") == [
        "wait per step        total       p50       p95       p99       max",
        "all                 1.01 s   10.0 ms   10.0 ms   10.0 ms   10.0 ms",
        "  read              1.01 s   10.0 ms   10.0 ms   10.0 ms   10.0 ms",
        "  copy                0 us      0 us      0 us      0 us      0 us",
        "  hand-over           0 us      0 us      0 us      0 us      0 us",
        (
            "101 batches in 1 epochs, 1.51 s; starved 66.9% of the time, 10.0 ms of it at the "
            "start of epochs, 0 us on the device"
        ),
        "per batch: loader 10.0 ms, step 5.0 ms; 0.1 MB at 0.1 MB/s; 1.0 of 2 batches ready",
        (
            "verdict: the loader is the bottleneck: 67% of the time starved; try reading fewer "
            "attributes (keys=)"
        ),
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 us"), (12.4e-6, "12 us"), (3.42e-3, "3.4 ms"), (1.234, "1.23 s")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_a_headspace_run_yields_the_first_batches_over_and_over():
    loader = [torch.tensor(k) for k in range(7)]
    free = DevicePrefetcher(loader, "cpu").headspace(batches=3)
    assert len(free) == 7
    assert [int(batch) for batch in free] == [0, 1, 2, 0, 1, 2, 0]
    assert free.num_steps == 7


def test_a_headspace_run_says_what_free_data_would_give():
    prefetcher = DevicePrefetcher(Paced(15, 0.01), "cpu")
    free = prefetcher.headspace(batches=2, steps=15)
    assert free.report() == "nothing replayed yet; run a loop over the headspace first"
    for _ in prefetcher:
        time.sleep(0.002)
    for _ in free:
        time.sleep(0.002)
    assert 0.002 < free.seconds_per_batch < 0.005
    gain = float(free.report().split()[-4])
    assert gain > 2
    assert free.report().startswith("with free data a step takes 2.")


def test_a_headspace_run_alone_has_nothing_to_compare_with():
    free = DevicePrefetcher(range(3), "cpu").headspace()
    assert list(free) == [0, 1, 2]
    assert "run a loop over the prefetcher before it to compare" in free.report()


def test_a_headspace_batch_may_be_written_to():
    free = DevicePrefetcher([{"a": 1}], "cpu").headspace(steps=3)
    for batch in free:
        assert batch == {"a": 1}
        batch["b"] = 2


def test_a_headspace_run_of_nothing_and_of_unknown_length():
    assert list(DevicePrefetcher([], "cpu").headspace(steps=4)) == []
    assert sum(DevicePrefetcher(iter([1]), "cpu").headspace()) == 100


def test_a_headspace_run_can_be_broken_off():
    free = DevicePrefetcher(range(9), "cpu").headspace(batches=2)
    for step, _ in enumerate(free):
        if step == 4:
            break
    assert free.num_steps == 4


def test_waits_can_be_measured_for_any_pace():
    stats = measure_waits([torch.zeros(4)] * 10, "cpu", step=0.001, num_steps=25)
    assert (stats.num_batches, stats.num_epochs) == (25, 3)
    assert stats.step_seconds > 0.001
    seen = []
    measure_waits([1, 2], "cpu", step=seen.append, num_steps=3)
    assert seen == [1, 2, 1]


def test_waits_of_an_empty_loader_cannot_be_measured():
    with pytest.raises(ValueError, match="the loader has no batch"):
        measure_waits([], "cpu", step=0.001)
