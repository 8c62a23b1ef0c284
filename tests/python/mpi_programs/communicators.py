"""Communicators and groups: every way of creating and comparing them, and the separation of their messages."""

import numpy as np
from harness import MPI, main, raises, roots


def total(comm):
    got = np.zeros(1, int)
    comm.Allreduce(np.array([comm.rank + 1]), got)
    return got[0] == comm.size * (comm.size + 1) // 2


def check_world_and_self(_):
    comm = MPI.COMM_WORLD
    assert comm.Get_size() == comm.size and comm.Get_rank() == comm.rank
    assert 0 <= comm.rank < comm.size
    assert MPI.COMM_SELF.size == 1 and MPI.COMM_SELF.rank == 0
    assert isinstance(comm, MPI.Intracomm) and isinstance(comm, MPI.Comm)
    assert comm.Is_intra() and not comm.Is_inter() and comm.is_intra and not comm.is_inter
    assert comm.Get_name() == comm.name == "MPI_COMM_WORLD"
    assert MPI.COMM_SELF.Get_name() == "MPI_COMM_SELF"
    assert comm == MPI.COMM_WORLD and comm != MPI.COMM_SELF and comm
    assert not MPI.COMM_NULL and MPI.Comm() == MPI.COMM_NULL and comm != MPI.COMM_NULL
    assert comm.Get_topology() == MPI.UNDEFINED
    assert MPI.Intracomm(comm) == comm
    assert total(MPI.COMM_SELF)


def check_dup(comm):
    copy = comm.Dup()
    assert copy != comm and copy.size == comm.size and copy.rank == comm.rank
    assert MPI.Comm.Compare(comm, copy) == comm.Compare(copy) == MPI.CONGRUENT
    assert comm.Compare(comm) == MPI.IDENT
    assert total(copy)
    # A message on one communicator is invisible on the other.
    request = comm.Isend(np.array([1]), comm.rank, 7)
    assert not copy.Iprobe(comm.rank, 7)
    got = np.zeros(1, int)
    other = copy.Isend(np.array([2]), comm.rank, 7)
    copy.Recv(got, MPI.ANY_SOURCE, MPI.ANY_TAG)
    assert got[0] == 2
    comm.Recv(got, comm.rank, 7)
    assert got[0] == 1
    request.Wait()
    other.Wait()
    copy.Set_name("the copy")
    assert copy.name == "the copy"
    copy.name = "renamed"
    assert copy.Get_name() == "renamed"
    copy.Free()
    assert copy == MPI.COMM_NULL and not copy
    clone = comm.Clone()
    assert total(clone)
    clone.Free()
    copy, request = comm.Idup()
    request.Wait()
    assert total(copy)
    copy.Disconnect()
    assert copy == MPI.COMM_NULL


def check_split(comm):
    halves = comm.Split(comm.rank % 2, comm.rank)
    assert halves.size == len(range(comm.rank % 2, comm.size, 2)) and halves.rank == comm.rank // 2
    assert total(halves)
    members = halves.allgather(comm.rank)
    assert members == list(range(comm.rank % 2, comm.size, 2))
    backwards = comm.Split(0, -comm.rank)
    assert backwards.rank == comm.size - 1 - comm.rank
    assert backwards.allgather(comm.rank) == list(range(comm.size))[::-1]
    assert comm.Compare(backwards) == (MPI.SIMILAR if comm.size > 1 else MPI.CONGRUENT)
    nested = halves.Split(halves.rank // 2)
    assert total(nested)
    one = comm.Split(MPI.UNDEFINED if comm.rank else 5)
    assert (one == MPI.COMM_NULL) == (comm.rank != 0)
    if one:
        assert one.size == 1
        one.Free()
    same_keys = comm.Split(color=3, key=0)
    assert same_keys.rank == comm.rank
    for c in (halves, backwards, nested, same_keys):
        c.Free()


def check_split_type(comm):
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED)
    assert 1 <= shared.size <= comm.size
    assert total(shared)
    none = comm.Split_type(MPI.UNDEFINED, info=MPI.Info.Create({"mpi_hw_resource_type": "mpi_shared_memory"}))
    assert none == MPI.COMM_NULL
    shared.Free()


def check_create(comm):
    world = comm.Get_group()
    evens = world.Incl(list(range(0, comm.size, 2)))
    some = comm.Create(evens)
    assert (some == MPI.COMM_NULL) == (comm.rank % 2 == 1)
    if some:
        assert some.size == evens.size and some.rank == comm.rank // 2 == evens.rank
        assert total(some)
        # Only the group's members take part in Create_group.
        inner = comm.Create_group(evens, tag=3)
        assert total(inner)
        inner.Free()
        some.Free()
    assert comm.Create(MPI.GROUP_EMPTY) == MPI.COMM_NULL


def check_collectives_on_overlapping_communicators(comm):
    rows = comm.Split(comm.rank // 2)
    columns = comm.Split(comm.rank % 2)
    for i in range(50):
        a, b = np.array([comm.rank + i]), np.array([comm.rank - i])
        requests = [rows.Iallreduce(MPI.IN_PLACE, a), columns.Iallreduce(MPI.IN_PLACE, b)]
        MPI.Request.Waitall(requests)
        assert a[0] == sum(r + i for r in roots(comm) if r // 2 == comm.rank // 2)
        assert b[0] == sum(r - i for r in roots(comm) if r % 2 == comm.rank % 2)
    rows.Free()
    columns.Free()


def check_many_communicators(comm):
    """Freed contexts are really free: the thousandth communicator is as good as the first."""
    for i in range(300):
        c = comm.Split(comm.rank % (1 + i % 3), comm.rank)
        if i % 50 == 0:
            assert total(c)
        c.Free()


def check_groups(comm):
    world = comm.Get_group()
    assert world.Get_size() == world.size == comm.size and world.Get_rank() == world.rank == comm.rank
    assert comm.group.size == comm.size
    n = comm.size
    evens, odds = world.Incl(range(0, n, 2)), world.Excl(range(0, n, 2))
    assert evens.size + odds.size == n
    assert evens.rank == (comm.rank // 2 if comm.rank % 2 == 0 else MPI.UNDEFINED)
    both = MPI.Group.Union(evens, odds)
    assert both.size == n and MPI.Group.Compare(both, world) in (MPI.SIMILAR, MPI.IDENT)
    assert MPI.Group.Intersection(evens, odds).size == 0
    assert MPI.Group.Intersection(evens, odds) == MPI.GROUP_EMPTY
    assert world.Compare(MPI.Group.Difference(world, odds)) == (MPI.IDENT if n == 1 else MPI.UNEQUAL)
    assert MPI.Group.Difference(world, odds).Compare(evens) == MPI.IDENT
    assert world.Dup().Compare(world) == MPI.IDENT
    assert world.Translate_ranks(range(0, n, 2), evens) == list(range(evens.size))
    assert MPI.Group.Translate_ranks(evens, None, world) == list(range(0, n, 2))
    if n > 1:
        assert world.Translate_ranks([1], evens) == [MPI.UNDEFINED]
    assert world.Translate_ranks([MPI.PROC_NULL], evens) == [MPI.PROC_NULL]
    assert world.Range_incl([(0, n - 1, 2)]).Compare(evens) == MPI.IDENT
    assert world.Range_excl([(0, n - 1, 2)]).Compare(odds) == MPI.IDENT
    assert world.Range_incl([(n - 1, 0, -1)]).rank == n - 1 - comm.rank
    assert MPI.GROUP_EMPTY.size == 0 and MPI.GROUP_EMPTY.rank == MPI.UNDEFINED
    assert not MPI.GROUP_NULL and world
    raises(MPI.Exception, world.Incl, [n])
    evens.Free()
    assert evens == MPI.GROUP_NULL


def check_use_of_null_and_freed_communicators(comm):
    for dead in (MPI.COMM_NULL, comm.Dup()):
        if dead:
            dead.Free()
        error = raises(MPI.Exception, dead.Get_size)
        assert error.Get_error_class() == MPI.ERR_COMM
        error = raises(MPI.Exception, dead.Barrier)
        assert error.Get_error_class() == MPI.ERR_COMM
        raises(MPI.Exception, dead.Send, np.zeros(1), 0)


def check_attributes(comm):
    assert comm.Get_attr(MPI.TAG_UB) >= 32767
    # The largest tag works.
    top = min(comm.Get_attr(MPI.TAG_UB), 2**31 - 1)
    got = np.zeros(1)
    comm.Sendrecv(np.ones(1), comm.rank, top, got, comm.rank, top)
    assert got[0] == 1
    copies = []
    key = MPI.Comm.Create_keyval(lambda c, k, v: copies.append(v) or v + 1, lambda c, k, v: None)
    copy = comm.Dup()
    assert copy.Get_attr(key) is None
    copy.Set_attr(key, 41)
    assert copy.Get_attr(key) == 41
    again = copy.Dup()
    assert copies == [41] and again.Get_attr(key) == 42
    again.Delete_attr(key)
    assert again.Get_attr(key) is None
    again.Free()
    copy.Free()
    assert MPI.Comm.Free_keyval(key) == MPI.KEYVAL_INVALID


def check_info(comm):
    info = MPI.Info.Create()
    info.Set("key", "value")
    assert info.Get("key") == "value" and info.Get("other") is None
    assert info.Get_nkeys() == len(info) == 1 and info.Get_nthkey(0) == "key" and "key" in info
    info["second"] = "2"
    assert sorted(info) == ["key", "second"] and info["second"] == "2"
    assert dict(info.items()) == {"key": "value", "second": "2"}
    copy = info.Dup()
    info.Delete("key")
    assert "key" not in info and "key" in copy
    other = comm.Dup(copy)
    assert isinstance(other.Get_info(), MPI.Info)
    other.Free()
    info.Free()
    assert info == MPI.INFO_NULL


def check_pickling_of_predefined_handles(comm):
    import pickle

    for handle in (MPI.SUM, MPI.DOUBLE, MPI.COMM_WORLD, MPI.COMM_NULL, MPI.IN_PLACE, MPI.REQUEST_NULL):
        assert pickle.loads(pickle.dumps(handle)) == handle


def check_sends_outside_the_group(comm):
    error = raises(MPI.Exception, comm.Send, np.zeros(1), comm.size)
    assert error.Get_error_class() == MPI.ERR_RANK
    error = raises(MPI.Exception, comm.Send, np.zeros(1), 0, -5)
    assert error.Get_error_class() == MPI.ERR_TAG
    error = raises(MPI.Exception, comm.Bcast, np.zeros(1), comm.size)
    assert error.Get_error_class() == MPI.ERR_ROOT
    error = raises(MPI.Exception, comm.Recv, np.zeros(1), comm.size)
    assert error.Get_error_class() == MPI.ERR_RANK


if __name__ == "__main__":
    main(globals())
