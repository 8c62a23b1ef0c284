"""Groups of processes. A group is a tuple of workers, by their rank in the job. Source: MPI 4.1 section 7.3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tidemill._errors import UnsupportedError, fail
from tidemill.mpi import _constants as c
from tidemill.mpi._handle import Handle


class Group(Handle):
    """An ordered set of processes."""

    _kind = "group"
    _members: tuple[int, ...] | None

    def __new__(cls, group: Group | None = None) -> Group:
        if not isinstance(group, Group | None):
            raise TypeError(f"expecting a Group, not {type(group).__name__}")
        self = super().__new__(cls)
        self._members = None if group is None else group._members
        return self

    @classmethod
    def _of(cls, members: Iterable[int]) -> Any:
        self = super().__new__(cls)
        self._members = tuple(members)
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not self._members:
            name = "GROUP_NULL" if self._members is None else "GROUP_EMPTY"
            return _members_of, (type(self), name) if not self._is_constant() else (None, name)
        raise ValueError("cannot pickle a group: its ranks mean something in this job alone")

    def _identity(self) -> object:
        return self._members

    def __eq__(self, other: object) -> bool:
        return self._members == other._members if isinstance(other, Group) else NotImplemented

    __hash__ = Handle.__hash__

    def _workers(self) -> tuple[int, ...]:
        if self._members is None:
            raise fail("ERR_GROUP", "the group is GROUP_NULL (or was freed)")
        return self._members

    def Get_size(self) -> int:
        """Return the number of processes."""
        return len(self._workers())

    def Get_rank(self) -> int:
        """Return the rank of this process, ``MPI.UNDEFINED`` if it is not a member."""
        from tidemill._membership import current_rank

        return self._index().get(current_rank(), c.UNDEFINED)

    size = property(Get_size, doc="How many processes there are.")
    rank = property(Get_rank, doc="This process's rank, ``MPI.UNDEFINED`` if it is not a member.")

    def _index(self) -> dict[int, int]:
        return {worker: rank for rank, worker in enumerate(self._workers())}

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Group | None = None) -> list[int]:
        """Return the ranks in `group` (by default, the whole job) of these ranks in this group (by default, all)."""
        mine = self._workers()
        if group is None:
            from tidemill._membership import current_size

            index = {worker: worker for worker in range(current_size())}
        else:
            index = group._index()
        wanted = range(len(mine)) if ranks is None else ranks
        return [
            c.PROC_NULL if rank == c.PROC_NULL else index.get(mine[self._valid(rank)], c.UNDEFINED) for rank in wanted
        ]

    def _valid(self, rank: int) -> int:
        if not 0 <= rank < len(self._workers()):
            raise fail("ERR_RANK", f"rank {rank} is not in a group of {len(self._workers())}")
        return rank

    def Compare(self, group: Group) -> int:
        """Return ``MPI.IDENT``, ``MPI.SIMILAR`` (other order) or ``MPI.UNEQUAL``."""
        mine, theirs = self._workers(), group._workers()
        if mine == theirs:
            return c.IDENT
        return c.SIMILAR if sorted(mine) == sorted(theirs) else c.UNEQUAL

    def Dup(self) -> Any:
        """Return an equal group."""
        return type(self)._of(self._workers())

    @classmethod
    def Union(cls, group1: Group, group2: Group) -> Any:
        """Return the members of the first group, followed by those of the second that are not in the first."""
        return cls._of(dict.fromkeys(group1._workers() + group2._workers()))

    @classmethod
    def Intersection(cls, group1: Group, group2: Group) -> Any:
        """Return the members of the first group that are also in the second."""
        others = set(group2._workers())
        return cls._of(worker for worker in group1._workers() if worker in others)

    @classmethod
    def Intersect(cls, group1: Group, group2: Group) -> Any:
        """Same as `Intersection`."""
        return cls.Intersection(group1, group2)

    @classmethod
    def Difference(cls, group1: Group, group2: Group) -> Any:
        """Return the members of the first group that are not in the second."""
        others = set(group2._workers())
        return cls._of(worker for worker in group1._workers() if worker not in others)

    def Incl(self, ranks: Sequence[int]) -> Any:
        """Return the members with these ranks, in this order."""
        mine, wanted = self._workers(), list(ranks)
        if len(set(wanted)) != len(wanted):
            raise fail("ERR_RANK", "a rank is given twice")
        return type(self)._of(mine[self._valid(rank)] for rank in wanted)

    def Excl(self, ranks: Sequence[int]) -> Any:
        """Return the members without these ranks."""
        left_out = {self._valid(rank) for rank in ranks}
        if len(left_out) != len(list(ranks)):
            raise fail("ERR_RANK", "a rank is given twice")
        return type(self)._of(worker for rank, worker in enumerate(self._workers()) if rank not in left_out)

    def Range_incl(self, ranks: Sequence[tuple[int, int, int]]) -> Any:
        """Return the members in ranges ``(first, last, stride)``, both ends included."""
        return self.Incl(_unrolled(ranks))

    def Range_excl(self, ranks: Sequence[tuple[int, int, int]]) -> Any:
        """Return the members outside ranges ``(first, last, stride)``, both ends included."""
        return self.Excl(_unrolled(ranks))

    @classmethod
    def Create_from_session_pset(cls, session: Any, pset_name: str) -> Group:
        """Not available: sessions are not supported."""
        raise UnsupportedError("Tidemill has no Group.Create_from_session_pset (sessions); use COMM_WORLD.Get_group()")

    def Free(self) -> None:
        """Set this handle to ``MPI.GROUP_NULL``."""
        self._workers()
        self._members = None

    def free(self) -> None:
        """Free the group unless it is null or predefined."""
        if self and self._predefined_name is None:
            self.Free()


def _members_of(kind: type[Group] | None, name: str) -> Group:
    """Restore a predefined group, or a copy of one, after pickling."""
    from tidemill.mpi._handle import _predefined

    found: Group = _predefined(name)
    return found if kind is None else kind(found)


def _unrolled(ranges: Sequence[tuple[int, int, int]]) -> list[int]:
    ranks: list[int] = []
    for first, last, stride in ranges:
        if stride == 0:
            raise fail("ERR_ARG", "a range needs a stride other than 0")
        ranks.extend(range(first, last + (1 if stride > 0 else -1), stride))
    return ranks


GROUP_NULL = Group()
GROUP_NULL._predefined_name = "GROUP_NULL"
GROUP_EMPTY: Group = Group._of(())
GROUP_EMPTY._predefined_name = "GROUP_EMPTY"
