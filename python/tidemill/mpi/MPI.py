"""The names of MPI: communicators, datatypes, operations, requests, constants. The same as `tidemill.mpi`.

The job is joined when ``COMM_WORLD`` or ``COMM_SELF`` is first used, not by the import.
"""

# ruff: noqa: F403 - what is imported here is what the module offers

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemill._errors import CommError
from tidemill.mpi._buffers import BOTTOM as BOTTOM
from tidemill.mpi._buffers import BUFFER_AUTOMATIC as BUFFER_AUTOMATIC
from tidemill.mpi._buffers import IN_PLACE as IN_PLACE
from tidemill.mpi._buffers import BottomType as BottomType
from tidemill.mpi._buffers import BufferAutomaticType as BufferAutomaticType
from tidemill.mpi._buffers import InPlaceType as InPlaceType
from tidemill.mpi._comm import COMM_NULL as COMM_NULL
from tidemill.mpi._comm import Comm as Comm
from tidemill.mpi._comm import Intracomm as Intracomm
from tidemill.mpi._constants import *
from tidemill.mpi._datatype import DATATYPE_NULL as DATATYPE_NULL
from tidemill.mpi._datatype import Datatype as Datatype
from tidemill.mpi._datatype import by_code as _by_code
from tidemill.mpi._environment import Add_error_class as Add_error_class
from tidemill.mpi._environment import Add_error_code as Add_error_code
from tidemill.mpi._environment import Add_error_string as Add_error_string
from tidemill.mpi._environment import Finalize as Finalize
from tidemill.mpi._environment import Get_abi_fortran_info as Get_abi_fortran_info
from tidemill.mpi._environment import Get_abi_info as Get_abi_info
from tidemill.mpi._environment import Get_abi_version as Get_abi_version
from tidemill.mpi._environment import Get_error_class as Get_error_class
from tidemill.mpi._environment import Get_error_string as Get_error_string
from tidemill.mpi._environment import Get_hw_resource_info as Get_hw_resource_info
from tidemill.mpi._environment import Get_library_version as Get_library_version
from tidemill.mpi._environment import Get_processor_name as Get_processor_name
from tidemill.mpi._environment import Get_version as Get_version
from tidemill.mpi._environment import Init as Init
from tidemill.mpi._environment import Init_thread as Init_thread
from tidemill.mpi._environment import Is_finalized as Is_finalized
from tidemill.mpi._environment import Is_initialized as Is_initialized
from tidemill.mpi._environment import Is_thread_main as Is_thread_main
from tidemill.mpi._environment import Pcontrol as Pcontrol
from tidemill.mpi._environment import Query_thread as Query_thread
from tidemill.mpi._environment import Remove_error_class as Remove_error_class
from tidemill.mpi._environment import Remove_error_code as Remove_error_code
from tidemill.mpi._environment import Remove_error_string as Remove_error_string
from tidemill.mpi._environment import Wtick as Wtick
from tidemill.mpi._environment import Wtime as Wtime
from tidemill.mpi._environment import get_vendor as get_vendor
from tidemill.mpi._group import GROUP_EMPTY as GROUP_EMPTY
from tidemill.mpi._group import GROUP_NULL as GROUP_NULL
from tidemill.mpi._group import Group as Group
from tidemill.mpi._info import ERRHANDLER_NULL as ERRHANDLER_NULL
from tidemill.mpi._info import ERRORS_ABORT as ERRORS_ABORT
from tidemill.mpi._info import ERRORS_ARE_FATAL as ERRORS_ARE_FATAL
from tidemill.mpi._info import ERRORS_RETURN as ERRORS_RETURN
from tidemill.mpi._info import INFO_ENV as INFO_ENV
from tidemill.mpi._info import INFO_NULL as INFO_NULL
from tidemill.mpi._info import Errhandler as Errhandler
from tidemill.mpi._info import Info as Info
from tidemill.mpi._inter import Intercomm as Intercomm
from tidemill.mpi._memory import Aint_add as Aint_add
from tidemill.mpi._memory import Aint_diff as Aint_diff
from tidemill.mpi._memory import Alloc_mem as Alloc_mem
from tidemill.mpi._memory import Attach_buffer as Attach_buffer
from tidemill.mpi._memory import Detach_buffer as Detach_buffer
from tidemill.mpi._memory import Flush_buffer as Flush_buffer
from tidemill.mpi._memory import Free_mem as Free_mem
from tidemill.mpi._memory import Get_address as Get_address
from tidemill.mpi._memory import Iflush_buffer as Iflush_buffer
from tidemill.mpi._message import MESSAGE_NO_PROC as MESSAGE_NO_PROC
from tidemill.mpi._message import MESSAGE_NULL as MESSAGE_NULL
from tidemill.mpi._message import Message as Message
from tidemill.mpi._missing import FILE_NULL as FILE_NULL
from tidemill.mpi._missing import SESSION_NULL as SESSION_NULL
from tidemill.mpi._missing import WIN_NULL as WIN_NULL
from tidemill.mpi._missing import Close_port as Close_port
from tidemill.mpi._missing import File as File
from tidemill.mpi._missing import Lookup_name as Lookup_name
from tidemill.mpi._missing import Open_port as Open_port
from tidemill.mpi._missing import Publish_name as Publish_name
from tidemill.mpi._missing import Register_datarep as Register_datarep
from tidemill.mpi._missing import Session as Session
from tidemill.mpi._missing import Unpublish_name as Unpublish_name
from tidemill.mpi._missing import Win as Win
from tidemill.mpi._names import *
from tidemill.mpi._op import OP_NULL as OP_NULL
from tidemill.mpi._op import Op as Op
from tidemill.mpi._pickle import Pickle as Pickle
from tidemill.mpi._pickle import pickle as pickle
from tidemill.mpi._request import REQUEST_NULL as REQUEST_NULL
from tidemill.mpi._request import Grequest as Grequest
from tidemill.mpi._request import Prequest as Prequest
from tidemill.mpi._request import Request as Request
from tidemill.mpi._status import F_ERROR as F_ERROR
from tidemill.mpi._status import F_SOURCE as F_SOURCE
from tidemill.mpi._status import F_STATUS_SIZE as F_STATUS_SIZE
from tidemill.mpi._status import F_TAG as F_TAG
from tidemill.mpi._status import Status as Status
from tidemill.mpi._topology import Cartcomm as Cartcomm
from tidemill.mpi._topology import Compute_dims as Compute_dims
from tidemill.mpi._topology import Distgraphcomm as Distgraphcomm
from tidemill.mpi._topology import Graphcomm as Graphcomm
from tidemill.mpi._topology import Topocomm as Topocomm

if TYPE_CHECKING:
    from tidemill.mpi._buffer import buffer as buffer

    memory = buffer

#: The base of all errors of this package, `tidemill.CommError`.
Exception = CommError
_typedict: dict[str, Datatype] = _by_code


COMM_WORLD: Intracomm
COMM_SELF: Intracomm


def __getattr__(name: str) -> Any:
    # The first access to the communicators joins the job.
    if name in ("COMM_WORLD", "COMM_SELF"):
        from tidemill.mpi._world import communicators

        globals()["COMM_WORLD"], globals()["COMM_SELF"] = communicators()
        return globals()[name]
    if name in ("buffer", "memory"):
        # This needs NumPy, and programs without arrays start sooner.
        from tidemill.mpi._buffer import buffer

        globals()["buffer"] = globals()["memory"] = buffer
        return buffer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "COMM_WORLD", "COMM_SELF", "buffer", "memory"})
