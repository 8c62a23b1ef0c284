"""The API of `tidemill` and `tidemill.mpi`: names, docstrings, and the cost of the import."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tidemill
from tidemill import _errors, mpi
from tidemill.mpi import MPI


def members(module: ModuleType) -> list[tuple[str, object]]:
    return [(name, getattr(module, name)) for name in dir(module) if not name.startswith("_")]


def undocumented(name: str, value: object) -> list[str]:
    """Return the names of a public function or class, and of its public attributes, without a docstring."""
    if not inspect.isclass(value):
        return [] if inspect.getdoc(value) else [name]
    missing = [] if inspect.getdoc(value) else [name]
    for attribute, found in vars(value).items():
        if attribute.startswith("_") or not (
            callable(found) or isinstance(found, (property, classmethod, staticmethod))
        ):
            continue
        if not inspect.getdoc(getattr(value, attribute)):
            missing.append(f"{name}.{attribute}")
    return missing


def test_every_public_name_has_a_text() -> None:
    missing = []
    for module in (tidemill, mpi):
        for name, value in members(module):
            if inspect.isclass(value) or inspect.isroutine(value):
                missing += undocumented(name, value)
    # The native methods are public through the Python classes that inherit them.
    for kind in (MPI.Comm, MPI.Request, MPI.Status, MPI.Message):
        native = kind.__mro__[1]
        missing += undocumented(f"native {kind.__name__}", native)
    assert not missing, missing


def test_both_names_of_the_module_are_one() -> None:
    assert mpi.COMM_WORLD is MPI.COMM_WORLD is tidemill.init().comm
    assert mpi.SUM is MPI.SUM and mpi.Comm is MPI.Comm and tidemill.Communicator is MPI.Intracomm
    assert MPI.Exception is tidemill.CommError
    with pytest.raises(AttributeError, match="NO_SUCH_NAME"):
        _ = MPI.NO_SUCH_NAME
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = tidemill.no_such_name  # type: ignore[attr-defined]


def test_names_of_mpi4py_are_there() -> None:
    """A missing name would end a program at its first line, whether it uses the name or not."""
    names = json.loads((Path(__file__).parents[1] / "mpi_programs" / "names.json").read_text())
    absent = []
    for path in names:
        owner, _, name = path.rpartition(".")
        if not hasattr(getattr(MPI, owner) if owner else MPI, name):
            absent.append(path)
    assert not absent, absent


def test_errors_are_caught_by_either_name() -> None:
    for kind in (tidemill.WorkerLost, tidemill.PeerFailed, tidemill.MismatchError, tidemill.TruncationError):
        error = kind("text")
        assert isinstance(error, tidemill.CommError) and isinstance(error, MPI.Exception)
        assert isinstance(error, tidemill.TidemillError) and isinstance(error, RuntimeError)
        assert str(error) == "text" and error.Get_error_class() != MPI.SUCCESS
    assert tidemill.PeerFailed("text", 3, "trace").rank == 3
    assert issubclass(tidemill.UnsupportedError, NotImplementedError)


def test_errors_have_their_public_names() -> None:
    """A traceback that names a private module misleads its reader; pickles would depend on the package's layout."""
    kinds = [name for name in _errors.__all__ if name.endswith(("Error", "Lost", "Failed"))]
    assert len(kinds) == 9
    for name in kinds:
        kind = getattr(tidemill, name)
        assert kind.__module__ == "tidemill" and type(pickle.loads(pickle.dumps(kind("text")))) is kind


def run_python(code: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **env}, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_import_loads_little() -> None:
    """Time depends on the machine; the modules loaded do not. NumPy alone would take most of the 0.1 s."""
    loaded = run_python("import sys, tidemill; print(*sorted(sys.modules))").split()
    heavy = {"numpy", "sklearn", "cloudpickle", "pickle", "tidemill._tidemill", "tidemill.mpi"}
    assert not heavy & set(loaded), heavy & set(loaded)


def test_threads_may_load_parts_at_the_same_time() -> None:
    code = """
import sys, threading
import tidemill as tm

sys.setswitchinterval(1e-5)
names = ["stream", "from_dict", "from_pylist", "group", "Graph", "networks", "iterate", "ml"]
gate = threading.Barrier(len(names))

def load(name):
    gate.wait()
    getattr(tm, name)
    print(name + "\\n", end="")

for thread in [threading.Thread(target=load, args=(name,)) for name in names]:
    thread.start()
"""
    assert len(run_python(code).split()) == 8


def test_the_import_joins_no_job() -> None:
    """A program that only prints its help must not wait for workers that do not exist."""
    code = "from tidemill.mpi import MPI; print(MPI.SUM.is_predefined, MPI.COMM_NULL == MPI.Comm())"
    absent = {"TIDEMILL_RANK": "1", "TIDEMILL_SIZE": "2", "TIDEMILL_ROOT": "127.0.0.1:1", "TIDEMILL_SECRET": "0" * 64}
    assert run_python(code, **absent, TIDEMILL_JOB="x").split() == ["True", "True"]


def test_algorithms_and_repeatable_sums_are_chosen_by_keyword() -> None:
    import numpy as np

    comm = tidemill.init().comm
    total = np.zeros(3)
    comm.Allreduce(np.ones(3), total, algorithm="ring", repeatable=False)
    comm.Iallreduce(np.ones(3), total, repeatable=True).Wait()
    assert total.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="recursive_doubling"):
        comm.Allreduce(np.ones(3), total, algorithm="no such algorithm")
    with pytest.raises(MPI.Exception):
        comm.Bcast(total, algorithm="pairwise")


def test_datatypes_chosen_by_digits() -> None:
    """They are predefined, but have no name: they are identified by their digits, also after pickling."""
    for made, size, contents in (
        (MPI.Datatype.Create_f90_integer(4), 2, [4]),
        (MPI.Datatype.Create_f90_real(15, 300), 8, [15, 300]),
        (MPI.Datatype.Create_f90_complex(6, 30), 8, [6, 30]),
    ):
        assert made.size == size and made.is_predefined and not made.is_named
        assert made.contents[0] == contents
        assert pickle.loads(pickle.dumps(made)) == made
        with pytest.raises(MPI.Exception, match="predefined"):
            made.Free()
    assert MPI.Datatype.Create_f90_integer(4) == MPI.Datatype.Create_f90_integer(4) != MPI.INTEGER2
    total = np.zeros(2)
    MPI.COMM_SELF.Allreduce([np.ones(2), MPI.Datatype.Create_f90_real(15, 300)], [total, MPI.DOUBLE])
    assert total.tolist() == [1, 1]


def test_a_status_is_memory() -> None:
    status = MPI.Status()
    status.source, status.tag = 11, 22
    memory = status.tomemory()
    memory[list(memory).index(22)] = 7
    assert (status.source, status.tag) == (11, 7)


def test_recv_warns_of_a_buffer() -> None:
    request = MPI.COMM_SELF.isend([42], 0)
    with pytest.warns(UserWarning, match="deprecated"):
        assert MPI.COMM_SELF.recv(bytearray(10), 0) == [42]
    request.wait()


def test_pkl5_is_what_communicators_do_anyway() -> None:
    from tidemill.mpi.util import pkl5

    comm = pkl5.Intracomm(MPI.COMM_SELF)
    array = np.arange(1e5)
    request = comm.isend({"x": array}, 0)
    assert (comm.recv(source=0)["x"] == array).all()
    request.wait()
    with pytest.raises(tidemill.UnsupportedError, match=r"no mpi4py\.util\.pool"):
        _ = mpi.util.pool


class Tensor:
    """The interface of tensor libraries; with elements that NumPy lacks, if `bits` are given."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.asked = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: object) -> object:
        self.asked += 1
        return self.array.__dlpack__()


def test_tensors_travel_by_dlpack() -> None:
    """Shared without copying, with the capsule's shape and type; a non-contiguous one is refused."""
    sent, room = Tensor(np.arange(6.0).reshape(2, 3)), Tensor(np.zeros((2, 3)))
    MPI.COMM_SELF.Sendrecv(sent, 0, 0, room, 0, 0)
    assert (room.array == sent.array).all() and sent.asked and room.asked
    with pytest.raises(BufferError, match="not contiguous"):
        MPI.COMM_SELF.Sendrecv(Tensor(np.zeros((4, 4))[::2, ::2]), 0, 0, Tensor(np.zeros((2, 2))), 0, 0)
    assert MPI.buffer(Tensor(np.arange(3, dtype="u1"))).tolist() == [0, 1, 2]


def test_arrays_apart_from_their_pickle() -> None:
    """From a threshold on, with any protocol; `None` restores the default."""
    way, array = MPI.Pickle(protocol=4, threshold=8), np.arange(4)
    assert (way.PROTOCOL, way.THRESHOLD) == (4, 8)
    body, (apart,) = way.dumps_oob(array)
    assert isinstance(apart, MPI.buffer) and (way.loads_oob(body, [apart]) == array).all()
    way.THRESHOLD = way.PROTOCOL = None
    assert (way.PROTOCOL, way.THRESHOLD) == (pickle.HIGHEST_PROTOCOL, 16384) and way.dumps_oob(array)[1] == []


def test_handles_are_made_of_their_own_kind() -> None:
    """`MPI.Info(MPI.GROUP_NULL)` said that a group has no attribute `_items`, or accepted it."""
    nulls = [getattr(MPI, name) for name in dir(MPI) if name.endswith("_NULL") and name != "PROC_NULL"]
    assert len(nulls) == 11
    for null in nulls:
        kind = type(null)
        assert kind() == kind(null) == null and type(pickle.loads(pickle.dumps(kind(null)))) is kind
        for other in [*(other for other in nulls if type(other) is not kind), MPI.Status(), 1234, "abc"]:
            with pytest.raises(TypeError):
                kind(other)
    copy = MPI.Message(MPI.MESSAGE_NO_PROC)
    copy.free()
    assert not copy and MPI.MESSAGE_NO_PROC


def test_messages_without_a_datatype_or_in_another_byte_order() -> None:
    comm, room = MPI.COMM_SELF, np.zeros(3, "i4")
    for spec in ([room, None, 0, MPI.DATATYPE_NULL], [room, 0, 1, MPI.DATATYPE_NULL]):
        with pytest.raises(ValueError, match="the datatype is DATATYPE_NULL"):
            comm.Sendrecv(spec, 0, 0, [room, MPI.INT], 0, 0)
    swapped = np.arange(3, dtype=room.dtype.newbyteorder())
    with pytest.raises(BufferError, match="byte order"):
        comm.Sendrecv(swapped, 0, 0, room, 0, 0)
    comm.Sendrecv([swapped, MPI.INT], 0, 0, [room, MPI.INT], 0, 0)
    assert (room.view(swapped.dtype) == swapped).all()
    # Memory of `MPI.Alloc_mem`, gathered by a derived datatype, and an item that would begin before it.
    memory, every_other = MPI.Alloc_mem(8), MPI.BYTE.Create_vector(4, 1, 2)
    memory[:] = bytes(range(8))
    comm.Sendrecv([memory, 1, every_other], 0, 0, [room, 4, MPI.BYTE], 0, 0)
    assert room.tobytes()[:4] == bytes([0, 2, 4, 6])
    with pytest.raises(ValueError, match="out of bounds"):
        comm.Sendrecv([memory, 0, 1, MPI.INT.Create_resized(0, -4)], 0, 0, [room, MPI.INT], 0, 0)
    received = bytearray(3)
    comm.Alltoallw([b"abc", None, None, [MPI.CHAR]], [received, [MPI.CHAR]])
    assert received == b"a\0\0"
    with pytest.raises(ValueError, match="BOTTOM needs counts and displacements"):
        comm.Alltoallw([MPI.BOTTOM, None, [0], [MPI.BYTE]], [received, [MPI.CHAR]])


def test_functions_of_attributes_that_raise() -> None:
    """As in mpi4py, an MPI error, caused by the exception raised."""

    def refuse(*_: object) -> None:
        raise ValueError("not this one")

    comm = MPI.COMM_SELF.Dup()
    key = MPI.Comm.Create_keyval(None, refuse)
    comm.Set_attr(key, 1)
    with pytest.raises(MPI.Exception, match="refuse raised ValueError: not this one") as raised:
        comm.Delete_attr(key)
    assert raised.value.Get_error_class() == MPI.ERR_OTHER
    assert isinstance(raised.value.__cause__, ValueError)


def test_who_gives_an_object_is_told_of_the_small_letter() -> None:
    """It was "expecting buffer or list/tuple", for a list."""
    comm = tidemill.init().comm
    for given in ([1, 2, 3], [1.0, 2], 5, "text", None):
        with pytest.raises(TypeError, match=r"message: expecting buffer or list/tuple.*bcast for Bcast"):
            comm.Bcast(given)
    for given in ([1], [1, 2, 3, 4, 5]):
        with pytest.raises(ValueError, match=r"message: expecting 2 to 4 items.*bcast for Bcast"):
            comm.Bcast(given)
