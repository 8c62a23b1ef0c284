"""mpi4py's communicators that pickle with protocol 5. In Tidemill every communicator does: these are the same classes.

The lower-case calls send large arrays inside an object out of band, without copying them, and messages have no limit of 2 GiB.
So ``pkl5.Intracomm(MPI.COMM_WORLD)`` gives a program what it asks for.
"""

from __future__ import annotations

from tidemill.mpi._comm import Comm, Intracomm
from tidemill.mpi._inter import Intercomm
from tidemill.mpi._message import Message
from tidemill.mpi._pickle import Pickle, pickle
from tidemill.mpi._request import Request

__all__ = ["Comm", "Intercomm", "Intracomm", "Message", "Pickle", "Request", "pickle"]
