"""Repair: what is whole stays, what is broken is put aside, and what was lost is said."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from forging import little_memory
from torch_geometric.data import Data, HeteroData

import shardgraph as sg
from shardgraph.atomic import LockedError, directory_lock
from shardgraph.cli import main
from shardgraph.format.manifest import _digest_entry
from shardgraph.format.splits import pack_split, unpack_split
from shardgraph.repair import Loss, whole


def graphs(count: int) -> Iterator[Data]:
    generator = torch.Generator().manual_seed(3)
    for number in range(count):
        n = number % 3 + 1
        yield Data(
            x=torch.rand(n, 2, generator=generator),
            edge_index=torch.randint(n, (2, n), generator=generator),
            y=number % 2,
            name=f"g{number}",
            v=torch.rand(n, 1 + number % 3, generator=generator),
        )


SPLITS = {"train": range(20), "test": [3, 21, 29], "none": []}


@pytest.fixture(params=[None, "gzip"], ids=["mapped", "gzip"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """30 graphs in several shards, with splits."""
    root = tmp_path / "data"
    with sg.DatasetWriter(
        root, shard_size=500, varying=["v"], compression=request.param, provenance={"source": "s"}
    ) as writer:
        for data in graphs(30):
            writer.write(data)
    manifest = sg.Manifest.read(root)
    assert len(manifest.shards) > 3
    splits = {
        name: pack_split(torch.tensor(ids).long().numpy(), 30) for name, ids in SPLITS.items()
    }
    replace(manifest, splits=splits).write(root)
    return root


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def names(root: Path) -> list[str]:
    return [data.name for data in sg.ShardedDataset(root)]


def split_ids(root: Path) -> dict[str, list[int]]:
    manifest = sg.Manifest.read(root)
    return {
        name: unpack_split(split, manifest.num_graphs).tolist()
        for name, split in manifest.splits.items()
    }


def places(manifest: sg.Manifest, number: int) -> tuple[str, range]:
    """Name of a shard, and its graphs."""
    start = sum(entry.num_graphs for entry in manifest.shards[:number])
    return manifest.shards[number].name, range(start, start + manifest.shards[number].num_graphs)


def test_nothing_to_repair(root: Path) -> None:
    before = files(root)
    report = sg.repair(root)
    assert not report.changed
    assert str(report) == f"{root}: nothing to repair"
    assert files(root) == before


@pytest.mark.parametrize("broken", ["quarantine", "drop"])
def test_broken_and_missing_shards(broken: str, root: Path) -> None:
    before, manifest = files(root), sg.Manifest.read(root)
    first, lost_first = places(manifest, 0)
    third, lost_third = places(manifest, 2)
    (root / first).unlink()
    with (root / third).open("r+b") as file:
        file.truncate(len(before[third]) // 2)
    damaged = (root / third).read_bytes()
    kept = [g for g in range(30) if g not in lost_first and g not in lost_third]

    report = sg.repair(root, broken=broken)
    assert report.changed
    assert report.num_graphs == len(kept)
    assert [(loss.name, loss.num_graphs) for loss in report.lost] == [
        (first, len(lost_first)),
        (third, len(lost_third)),
    ]
    assert "is missing though the manifest names it" in report.lost[0].reason
    assert f"the manifest says {len(before[third])}" in report.lost[1].reason
    assert sg.verify(root, level="full") == []
    assert names(root) == [f"g{g}" for g in kept]
    assert split_ids(root) == {
        name: [kept.index(g) for g in ids if g in kept] for name, ids in SPLITS.items()
    }
    found = sg.Manifest.read(root)
    lost = [[first, len(lost_first)], [third, len(lost_third)]]
    assert found.provenance == {**manifest.provenance, "repairs": [{"lost": lost}]}
    assert report.quarantine == root / "quarantine-0"
    assert (root / "quarantine-0" / "manifest.json").read_bytes() == before["manifest.json"]
    moved = root / "quarantine-0" / third
    assert not (root / third).exists()
    assert moved.exists() == (broken == "quarantine")
    if moved.exists():
        assert moved.read_bytes() == damaged
    for entry in found.shards:
        assert (root / entry.name).read_bytes() == before[entry.name]
    assert not sg.repair(root).changed


def test_statistics_are_those_of_the_graphs_that_are_left(root: Path, tmp_path: Path) -> None:
    last, lost = places(sg.Manifest.read(root), len(sg.Manifest.read(root).shards) - 1)
    (root / last).write_bytes(b"broken")
    sg.repair(root)
    with sg.DatasetWriter(tmp_path / "other", shard_size=500, varying=["v"]) as writer:
        for data in list(graphs(30))[: lost.start]:
            writer.write(data)
    found, wanted = sg.Manifest.read(root), sg.Manifest.read(tmp_path / "other")
    assert found.statistics == wanted.statistics
    assert found.to_json()["totals"]["num_nodes"] == wanted.num_nodes


def test_a_flipped_bit_in_values(root: Path) -> None:
    name, lost = places(sg.Manifest.read(root), 1)
    flip(root / name, _byte_of_x(root / name))
    (loss,) = sg.repair(root).lost
    assert (loss.name, loss.num_graphs) == (name, len(lost))
    assert sg.verify(root, level="full") == []


def _byte_of_x(path: Path) -> int:
    with h5py.File(path, "r") as file:
        dset = file["columns/x"]
        if dset.chunks is None:
            return int(dset.id.get_offset()) + 5
        return int(dset.id.get_chunk_info(0).byte_offset) + 5


def test_bytes_outside_the_arrays_cost_no_graphs(tmp_path: Path) -> None:
    with sg.DatasetWriter(tmp_path) as writer:
        for n in (300, 400):  # enough for arrays to be aligned, with holes between them
            writer.write(Data(x=torch.rand(n, 2)))
    path = tmp_path / "shard-00000.h5"
    with h5py.File(path, "r") as file:
        hole = file["columns/x"].id.get_offset() - 1
    assert path.read_bytes()[hole - 100 : hole + 1] == bytes(101)
    flip(path, hole)
    assert "outside its arrays" in str(sg.verify(tmp_path, level="full")[0])
    report = sg.repair(tmp_path)
    assert report.lost == ()
    assert report.remarks[0].startswith(f"{path.name}: whole and kept")
    assert [len(data.x) for data in sg.ShardedDataset(tmp_path)] == [300, 400]
    assert sg.verify(tmp_path, level="full") == []


def test_another_shard_in_the_place_of_one(root: Path) -> None:
    manifest = sg.Manifest.read(root)
    (first, _), (second, lost) = places(manifest, 0), places(manifest, 1)
    same = manifest.shards[0].num_graphs == manifest.shards[1].num_graphs
    shutil.copyfile(root / first, root / second)
    report = sg.repair(root)
    assert [loss.name for loss in report.lost] == [second]
    assert same or "graphs" in report.lost[0].reason
    assert names(root) == [f"g{g}" for g in range(30) if g not in lost]


def edit(root: Path, change: Any) -> None:
    path = root / "manifest.json"
    doc = json.loads(path.read_text())
    change(doc)
    path.write_text(json.dumps(doc))


def test_an_edited_manifest_is_signed_anew(root: Path) -> None:
    edit(root, lambda doc: doc["shards"][0].update(num_nodes=1, digest="0" * 32))
    report = sg.repair(root)
    assert report.lost == ()
    assert "was not as it was written" in report.remarks[0]
    assert names(root) == [f"g{g}" for g in range(30)]
    assert split_ids(root) == {name: list(ids) for name, ids in SPLITS.items()}
    assert sg.verify(root, level="full") == []


def test_a_shard_whose_name_changed_in_the_manifest_is_found_by_its_digest(root: Path) -> None:
    name, _ = places(sg.Manifest.read(root), 1)
    edit(root, lambda doc: doc["shards"][1].update(name=name.replace("00001", "00041")))
    report = sg.repair(root)
    assert report.lost == ()
    assert names(root) == [f"g{g}" for g in range(30)]
    assert split_ids(root) == {name: list(ids) for name, ids in SPLITS.items()}
    assert sg.verify(root, level="full") == []


def test_another_schema_may_be_given_where_the_manifest_changed(root: Path, tmp_path: Path) -> None:
    sg.Manifest.read(root).write(tmp_path)

    def change(doc: Any) -> None:
        doc["schema"]["stores"][0]["attributes"][0]["column"]["row_shape"] = [3]

    edit(root, change)
    before = files(root)
    with pytest.raises(sg.FormatError, match=r"no shard .* is whole.* as like=\.\.\. \(--like"):
        sg.repair(root)
    assert files(root) == before
    report = sg.repair(root, like=tmp_path)
    assert report.lost == ()
    assert "its splits and provenance are taken on trust" in report.remarks[0]
    assert names(root) == [f"g{g}" for g in range(30)]
    assert split_ids(root) == {name: list(ids) for name, ids in SPLITS.items()}
    assert sg.verify(root, level="full") == []


@pytest.mark.parametrize("change", [[], [" "]], ids=["as it was written", "changed"])
def test_claims_of_graphs_that_are_not_there(change: list[str], root: Path) -> None:
    """They take no memory, and the splits keep the graphs that are."""
    name, lost = places(sg.Manifest.read(root), 1)
    path = root / "manifest.json"
    manifest = sg.Manifest.read(root)
    entry = replace(manifest.shards[1], num_graphs=1 << 50, nbytes=1 << 60, digest="0" * 32)
    more = (1 << 50) - len(lost)
    splits = {"all": [[0, 30 + more]], "ends": [[0, 1], [lost.stop + more, 30 + more]], "no": []}
    shards = (manifest.shards[0], entry, *manifest.shards[2:])
    replace(manifest, shards=shards, splits=splits).write(root)
    path.write_text("".join([path.read_text(), *change]))
    (root / name).unlink()
    with little_memory():
        report = sg.repair(root)
    assert report.lost[0].num_graphs == 1 << 50
    assert f"split 'all': {30 - len(lost)} of {30 + more} graphs are left" in report.remarks
    assert names(root) == [f"g{g}" for g in range(30) if g not in lost]
    kept = range(30 - len(lost))
    assert split_ids(root) == {"all": [*kept], "ends": [0, *kept[lost.start :]], "no": []}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda doc: doc.pop("statistics"), id="no statistics"),
        pytest.param(lambda doc: doc["splits"].update(train="lost"), id="a split"),
        pytest.param(lambda doc: doc.update(generation="x"), id="generation"),
    ],
)
def test_a_manifest_of_which_a_part_is_lost(change: Any, root: Path) -> None:
    edit(root, change)
    with pytest.raises(sg.FormatError, match="cannot read"):
        sg.Manifest.read(root)
    report = sg.repair(root)
    assert "the manifest could not be read" in report.remarks[0]
    assert names(root) == [f"g{g}" for g in range(30)]
    assert split_ids(root)["test"] == [3, 21, 29]
    assert sg.verify(root, level="full") == []


@pytest.mark.parametrize("changed", [False, True])
def test_a_manifest_of_another_version(changed: bool, root: Path) -> None:
    """What a later release wrote is left alone; a version that is damage is not believed."""
    path = root / "manifest.json"
    text = path.read_text().replace('"version": "1.0"', '"version": "3.0"')
    head, _, _ = text.rpartition('"digest":')
    path.write_text(text if changed else head + _digest_entry(head.encode()))
    before = files(root)
    if changed:
        assert "format version 3.0 is not known" in sg.repair(root).remarks[0]
        assert names(root) == [f"g{g}" for g in range(30)]
    else:
        with pytest.raises(sg.FormatError, match=r"format version 3\.0 .* upgrade shardgraph"):
            sg.repair(root)
        assert files(root) == before


class Stacked(HeteroData):
    def __cat_dim__(self, key: str, value: Any, *args: Any) -> Any:
        return None if key == "w" else super().__cat_dim__(key, value, *args)


def test_more_graphs_than_the_bytes_of_a_file_can_hold(tmp_path: Path) -> None:
    """Of no type and no values, they take none: so many ids would take all memory."""
    with sg.DatasetWriter(tmp_path) as writer:
        writer.write(Stacked(w=torch.empty(0)))
    with h5py.File(tmp_path / "shard-00000.h5", "r+") as file:
        file.attrs["num_graphs"] = 1 << 40
        attributes = dict(file["columns/graph/w"].attrs)
        del file["columns/graph/w"]
        file.create_dataset("columns/graph/w", (1 << 40, 0), "f4").attrs.update(attributes)
    edit(tmp_path, lambda doc: doc.pop("shards"))
    with little_memory(), pytest.raises(sg.FormatError, match=r"cannot hold 1099511627776 graphs"):
        sg.repair(tmp_path)


def test_a_manifest_that_names_no_shards(root: Path) -> None:
    edit(root, lambda doc: doc.pop("shards"))
    (root / "shard-00099.h5").write_bytes(b"not a shard")
    report = sg.repair(root)
    assert [loss.name for loss in report.lost] == ["shard-00099.h5"]
    assert report.lost[0].num_graphs is None
    assert "lost an unknown number of graphs" in str(report.lost[0])
    assert names(root) == [f"g{g}" for g in range(30)]
    assert split_ids(root) == {}


def test_no_manifest_but_another_of_the_schema(root: Path, tmp_path: Path) -> None:
    manifest = sg.Manifest.read(root)
    (root / "manifest.json").unlink()
    with pytest.raises(sg.FormatError, match=r"Its schema is needed .* as like=\.\.\. \(--like"):
        sg.repair(root)
    manifest.write(tmp_path)
    report = sg.repair(root, like=tmp_path)
    assert report.quarantine is None
    assert names(root) == [f"g{g}" for g in range(30)]
    found = sg.Manifest.read(root)
    assert found.statistics == manifest.statistics
    assert found.shards == manifest.shards
    assert sg.verify(root, level="full") == []


def test_a_schema_that_does_not_fit(root: Path, tmp_path: Path) -> None:
    with sg.DatasetWriter(tmp_path / "other") as writer:
        writer.write(Data(x=torch.ones(2, 3)))
    (root / "manifest.json").unlink()
    before = files(root)
    with pytest.raises(sg.FormatError, match=r"no shard in .* is whole, so nothing is changed"):
        sg.repair(root, like=tmp_path / "other")
    assert files(root) == before


def test_statistics_that_do_not_fit(root: Path) -> None:
    manifest = sg.Manifest.read(root)
    wrong = replace(manifest.statistics, num_graphs=29)
    replace(manifest, statistics=wrong).write(root)
    assert "`shardgraph repair` counts anew" in str(sg.verify(root, level="structure")[0])
    assert sg.repair(root).changed
    assert sg.Manifest.read(root).statistics == manifest.statistics


def test_dry_run(root: Path) -> None:
    name, _ = places(sg.Manifest.read(root), 1)
    (root / name).write_bytes(b"")
    before = files(root)
    report = sg.repair(root, dry_run=True)
    assert [loss.name for loss in report.lost] == [name]
    assert files(root) == before


def test_killed_after_the_manifest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new manifest is the commit: what a crash leaves behind is named by none."""
    name, _ = places(sg.Manifest.read(root), 1)
    (root / name).write_bytes(b"broken")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            sg.repair(root)
    assert [str(p) for p in sg.verify(root, level="full")] == [
        f"{name}: the manifest does not name this shard; remove it"
    ]
    assert (root / name).read_bytes() == b"broken"


def test_killed_before_the_manifest(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _ = places(sg.Manifest.read(root), 1)
    (root / name).write_bytes(b"broken")
    before = files(root)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sg.Manifest, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            sg.repair(root)
    assert {k: v for k, v in files(root).items() if "quarantine" not in k} == before
    assert sg.repair(root).quarantine == root / "quarantine-1"


def test_node_types(tmp_path: Path) -> None:
    with sg.DatasetWriter(tmp_path, shard_size=40) as writer:
        for number in range(4):
            data = HeteroData()
            data["user"].x = torch.full((3, 4), float(number))
            if number == 3:
                data["item"].x = torch.rand(2, 2)
                data["user", "buys", "item"].edge_index = torch.tensor([[0, 2], [1, 0]])
            writer.write(data)
    assert not sg.repair(tmp_path).changed
    (tmp_path / "shard-00001.h5").unlink()
    assert sg.repair(tmp_path).lost[0].num_graphs == 1
    assert [int(d["user"].x[0, 0]) for d in sg.ShardedDataset(tmp_path)] == [0, 2, 3]
    assert sg.verify(tmp_path, level="full") == []


def test_a_pyg_root(tmp_path: Path) -> None:
    with sg.DatasetWriter(tmp_path / "processed", shard_size=1) as writer:
        for n in (1, 2):
            writer.write(Data(x=torch.ones(n, 1)))
    (tmp_path / "processed" / "shard-00001.h5").unlink()
    assert sg.repair(tmp_path).path == tmp_path / "processed"
    (tmp_path / "copy").mkdir()
    (tmp_path / "processed" / "manifest.json").rename(tmp_path / "copy" / "manifest.json")
    report = sg.repair(tmp_path, like=tmp_path / "copy")
    assert (report.path, report.kept) == (tmp_path / "processed", ("shard-00000.h5",))


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
def test_a_shard_that_may_not_be_read_is_not_lost(
    number: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _ = places(sg.Manifest.read(root), 1)

    def refuse(path: Path) -> str:
        if path.name == name:
            raise OSError(number, os.strerror(number), str(path))
        return digest(path)

    digest = whole.file_digest
    monkeypatch.setattr(whole, "file_digest", refuse)
    before = files(root)
    with pytest.raises(OSError, match=f"{os.strerror(number)}.*{name}"):
        sg.repair(root, broken="drop")
    assert files(root) == before


def test_a_link_that_leads_round_in_a_circle(root: Path) -> None:
    name, lost = places(sg.Manifest.read(root), 1)
    (root / name).unlink()
    (root / name).symlink_to(name)
    report = sg.repair(root)
    assert [loss.name for loss in report.lost] == [name]
    assert report.quarantine is not None
    assert (report.quarantine / name).is_symlink()
    assert names(root) == [f"g{g}" for g in range(30) if g not in lost]


def test_the_command_says_one_thing_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a\nb\x1b[2J"
    with sg.DatasetWriter(tmp_path, shard_size=1) as writer:
        for _ in range(2):
            writer.write(Data(x=torch.ones(2, 1), **{name: torch.ones(5, 3)}))
    with h5py.File(tmp_path / "shard-00001.h5", "r+") as file:
        del file[f"columns/{name}"]
    assert main(["repair", str(tmp_path)]) == 3
    said = capsys.readouterr().out
    assert r"shard-00001.h5: lost 1 graphs:" in said
    assert "\x1b" not in said
    assert main(["info", str(tmp_path)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_beside_a_writer(root: Path) -> None:
    with directory_lock(root), pytest.raises(LockedError, match="is being written by this process"):
        sg.repair(root)


def test_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broken must be one of quarantine, drop; got 'keep'"):
        sg.repair(tmp_path, broken="keep")
    with pytest.raises(sg.FormatError, match="absent is not a directory, so there is nothing"):
        sg.repair(tmp_path / "absent")
    with pytest.raises(sg.FormatError, match=r"has no manifest\.json.*Its schema is needed"):
        sg.repair(tmp_path)


def test_texts() -> None:
    assert str(Loss(name="s", num_graphs=3, reason="gone")) == "s: lost 3 graphs: gone"


def test_command(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["repair", str(root)]) == 0
    assert capsys.readouterr().out == f"{root}: nothing to repair\n"
    name, lost = places(sg.Manifest.read(root), 1)
    (root / name).write_bytes(b"broken")
    assert main(["repair", str(root), "--dry-run"]) == 3
    assert capsys.readouterr().out.endswith("nothing was changed; without --dry-run it is done\n")
    assert main(["verify", str(root)]) == 1
    capsys.readouterr()
    assert main(["repair", str(root), "--broken", "drop"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{root}: {30 - len(lost)} graphs in ")
    assert lines[1].startswith(f"{name}: lost {len(lost)} graphs: has 6 bytes, the manifest says")
    assert lines[-1] == f"what was taken out is in {root}/quarantine-0"
    assert main(["verify", str(root), "--level", "full"]) == 0
