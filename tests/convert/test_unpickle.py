import collections
import functools
import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from shardgraph.convert.torchfile import load_pt
from shardgraph.convert.unpickle import RefusedPickleError, loads
from shardgraph.errors import FormatError


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def by_name(module, name, *, protocol=2):
    """A pickle of what the name stands for; protocol 4 takes a dotted name apart."""
    if protocol == 2:
        return b"\x80\x02c" + f"{module}\n{name}\n".encode() + b"."
    text = b"".join(b"\x8c" + bytes([len(part)]) + part.encode() for part in (module, name))
    return b"\x80\x04" + text + b"\x93."


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    "attack",
    [
        Call(os.system, "touch {marker}"),
        Call(eval, "open('{marker}', 'w')"),
        Call(exec, "open('{marker}', 'w')"),
        Call(__import__, "os"),
        Call(getattr, "text", "join"),
        Call(functools.partial, os.system, "touch {marker}"),
        Call(open, "{marker}", "w"),
        Call(np.load, "{marker}"),
        Call(torch.load, "{marker}"),
        Call(torch.storage._load_from_bytes, b""),
        Call(torch.hub.load, "a/b", "c"),
        Call(pickle.loads, b""),
        Call(Data.from_dict, {}),
    ],
    ids=lambda attack: getattr(attack.call[0], "__name__", str(attack.call[0])),
)
def test_calls_are_refused_unseen(tmp_path, attack, protocol):
    marker = tmp_path / "marker"
    function, args = attack.call
    args = [a.format(marker=marker) if isinstance(a, str) else a for a in args]
    data = pickle.dumps([{"a": Call(function, *args)}], protocol=protocol)
    with pytest.raises(RefusedPickleError, match="could run any code"):
        loads(data, "file")
    assert not marker.exists()


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("__builtin__", "getattr"),
        ("builtins", "dict.fromkeys"),
        ("collections", "OrderedDict.__init__"),
        ("collections", "abc.sys.modules"),
        ("numpy", "ndarray.tofile"),
        ("numpy", "load"),
        ("numpy.core.multiarray", "_reconstruct.__self__"),
        ("torch", "FloatStorage.from_file"),
        ("torch", "ops.load_library"),
        ("torch._utils", "_rebuild_tensor_v2.__globals__"),
        ("torch._utils", "importlib.import_module"),
        ("torch_geometric.data.data", "Data.from_dict"),
        ("torch_geometric.data.data", "copy.sys"),
        ("torch.jit", "load"),
        ("shardgraph.convert.unpickle", "Record"),
    ],
)
def test_names_off_the_list_are_refused(module, name, protocol):
    with pytest.raises(RefusedPickleError, match=f"file holds {module}.{name}, which is not"):
        loads(by_name(module, name, protocol=protocol), "file")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        # A class of the list gets new attributes (BUILD with slot state), or is called.
        (b"\x80\x02ctorch_geometric.data.data\nData\nN}X\x01\x00\x00\x00aK\x01s\x86b.", "TypeErro"),
        (b"\x80\x02ccollections\nOrderedDict\nN}X\x01\x00\x00\x00aK\x01s\x86b.", "TypeError"),
        (b"\x80\x02cnumpy\ndtype\nN}X\x01\x00\x00\x00aK\x01s\x86b.", "an attribute is set"),
        (b"\x80\x02c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb.", "AttributeError"),
        (b"\x80\x02c_codecs\nencode\nN}X\x05\x00\x00\x00_callK\x01s\x86b.", "an attribute is set"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00zip\x86R.", "codec 'zip'"),
        (b"\x80\x02c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R.", "bytes of a size"),
        (b"\x80\x02ccopy_reg\n_reconstructor\nc__builtin__\nlist\nc__builtin__\nobject\nN\x87R.",
         "is not a record"),
        (b"\x80\x02h\x07.", "UnpicklingError"),
        (b"\x80\x02X\xff\xff\xff\x7f", "UnpicklingError"),
        (b"\x80\x02Q.", "UnpicklingError"),
        (b"", "EOFError"),
    ],
)  # fmt: skip
def test_damaged_pickles_are_format_errors(data, message):
    with pytest.raises(FormatError, match=f"some file is damaged: .*{message}"):
        loads(data, "some file")


def test_deep_pickle_does_not_exhaust_the_stack():
    value = loads(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", "file")
    depth = 1
    while value:
        (value,), depth = value, depth + 1
    assert depth == 100_000


def test_shared_dtype_objects_are_not_changed():
    state = b"(K\x03X\x01\x00\x00\x00>NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb."
    loads(b"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00f8\x89\x89\x87R" + state, "file")
    assert np.dtype("f8") == np.dtype("float64")
    assert np.dtype("f8").byteorder == "="


def test_plain_values_and_arrays_are_read():
    value = {
        "a": [1, 2.5, None, True, "text", b"bytes", (3, {4}), frozenset({5}), 10**30],
        "a2": bytearray(b"x"),
        "b": np.arange(6, dtype=">i4").reshape(2, 3, order="F"),
        "c": collections.OrderedDict(x=np.float32(1.5)),
        "d": collections.defaultdict(list, {1: [2]}),
        "e": np.array(["a", "bc"], dtype=object),
        "f": np.zeros(0),
        "g": np.array([(1, 2.5)], dtype=[("x", "i8"), ("y", "f4")]),
    }  # fmt: skip
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(value, protocol)
        read, wanted = loads(data, "file"), pickle.loads(data)
        assert (read["a"], read["a2"]) == (value["a"], value["a2"])
        for key in "befg":
            assert read[key].dtype == wanted[key].dtype
            np.testing.assert_array_equal(read[key], value[key])
        assert (read["c"], read["d"]) == (value["c"], value["d"])


def zip_file(path, pickled, **storages):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        for key, content in storages.items():
            archive.writestr(f"archive/data/{key}", content)
    return path


def tensor_pickle(key, numel, offset, size, stride):
    """A pickle of one float tensor, written by hand."""
    out = io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            if isinstance(obj, str) and obj == "the storage":
                return ("storage", torch.FloatStorage, key, "cpu", numel)
            return None

    hooks = collections.OrderedDict()
    call = Call(torch._utils._rebuild_tensor_v2, "the storage", offset, size, stride, False, hooks)
    Pickler(out, protocol=2).dump(call)
    return out.getvalue()


def test_tensors_stay_inside_their_storage(tmp_path):
    content = np.arange(6, dtype=np.float32).tobytes()
    path = tmp_path / "a.pt"
    zip_file(path, tensor_pickle("k", 6, 1, (2, 2), (3, 1)), k=content)
    assert load_pt(path).tolist() == [[1, 2], [4, 5]]
    for numel, offset, size, stride in [
        (7, 0, (6,), (1,)),
        (6, 1, (6,), (1,)),
        (6, 0, (10**12,), (1,)),
        (6, -1, (2,), (1,)),
        (6, 0, (2,), (-1,)),
        (-1, 0, (2,), (1,)),
        (2**62, 0, (2,), (1,)),
    ]:
        zip_file(path, tensor_pickle("k", numel, offset, size, stride), k=content)
        with pytest.raises(FormatError, match=r"a.pt"):
            load_pt(path)
    zip_file(path, tensor_pickle("absent", 6, 0, (6,), (1,)), k=content)
    with pytest.raises(FormatError, match=r"a.pt is damaged: KeyError"):
        load_pt(path)


def test_torch_load_is_not_reached(tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch.load was called"))
    torch.save([Data(x=torch.ones(2))], tmp_path / "a.pt")
    load_pt(tmp_path / "a.pt")
    script = torch.jit.script(torch.nn.Linear(2, 2))
    torch.jit.save(script, tmp_path / "script.pt")
    with pytest.raises(FormatError, match=r"script.pt holds __torch__"):
        load_pt(tmp_path / "script.pt")


def test_tar_and_zip_tricks_are_refused(tmp_path):
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps([0] * 10_000, 2))
    with pytest.raises(FormatError, match=r"data.pkl is compressed"):
        load_pt(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(1, 2))
        archive.writestr("b/data.pkl", pickle.dumps(2, 2))
    with pytest.raises(FormatError, match="not one written by torch"):
        load_pt(path)
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
    path.write_bytes(magic + pickle.dumps(1001, 2) + pickle.dumps(Call(os.getcwd), 2))
    with pytest.raises(RefusedPickleError, match=r"holds .*getcwd"):
        load_pt(path)
