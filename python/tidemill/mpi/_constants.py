"""Integer constants of MPI: wildcards, kinds and limits. The values are specific to Tidemill; use the names.

Source: MPI 4.1 appendix A.1.
"""

from __future__ import annotations

from typing import Final

UNDEFINED: Final = -32766
ANY_SOURCE: Final = -1
ANY_TAG: Final = -1
PROC_NULL: Final = -2
ROOT: Final = -4
KEYVAL_INVALID: Final = -1

# Attributes that every communicator has.
TAG_UB: Final = -100
IO: Final = -101
WTIME_IS_GLOBAL: Final = -102
UNIVERSE_SIZE: Final = -103
APPNUM: Final = -104
LASTUSEDCODE: Final = -105
WIN_BASE: Final = -106
WIN_SIZE: Final = -107
WIN_DISP_UNIT: Final = -108
WIN_CREATE_FLAVOR: Final = -109
WIN_FLAVOR: Final = WIN_CREATE_FLAVOR
WIN_MODEL: Final = -110

# How two communicators or groups compare.
IDENT: Final = 0
CONGRUENT: Final = 1
SIMILAR: Final = 2
UNEQUAL: Final = 3

CART: Final = 1
GRAPH: Final = 2
DIST_GRAPH: Final = 3
COMM_TYPE_SHARED: Final = 1
COMM_TYPE_HW_GUIDED: Final = 2
COMM_TYPE_HW_UNGUIDED: Final = 3
COMM_TYPE_RESOURCE_GUIDED: Final = 4

ORDER_C: Final = 0
ORDER_FORTRAN: Final = 1
ORDER_F: Final = ORDER_FORTRAN
TYPECLASS_LOGICAL: Final = 0
TYPECLASS_INTEGER: Final = 1
TYPECLASS_REAL: Final = 2
TYPECLASS_COMPLEX: Final = 3
DISTRIBUTE_NONE: Final = 0
DISTRIBUTE_BLOCK: Final = 1
DISTRIBUTE_CYCLIC: Final = 2
DISTRIBUTE_DFLT_DARG: Final = -1

COMBINER_NAMED: Final = 0
COMBINER_DUP: Final = 1
COMBINER_CONTIGUOUS: Final = 2
COMBINER_VECTOR: Final = 3
COMBINER_HVECTOR: Final = 4
COMBINER_INDEXED: Final = 5
COMBINER_HINDEXED: Final = 6
COMBINER_INDEXED_BLOCK: Final = 7
COMBINER_HINDEXED_BLOCK: Final = 8
COMBINER_STRUCT: Final = 9
COMBINER_SUBARRAY: Final = 10
COMBINER_DARRAY: Final = 11
COMBINER_RESIZED: Final = 12
COMBINER_VALUE_INDEX: Final = 13
COMBINER_F90_INTEGER: Final = 14
COMBINER_F90_REAL: Final = 15
COMBINER_F90_COMPLEX: Final = 16

THREAD_SINGLE: Final = 0
THREAD_FUNNELED: Final = 1
THREAD_SERIALIZED: Final = 2
THREAD_MULTIPLE: Final = 3

#: Version of the MPI standard whose calls are provided (as far as this package supports them, see `tidemill.mpi`).
VERSION: Final = 4
SUBVERSION: Final = 0

UNWEIGHTED: Final = 1
WEIGHTS_EMPTY: Final = 0
BSEND_OVERHEAD: Final = 0
MAX_PROCESSOR_NAME: Final = 255
MAX_ERROR_STRING: Final = 511
MAX_PORT_NAME: Final = 1023
MAX_INFO_KEY: Final = 255
MAX_INFO_VAL: Final = 65535
MAX_OBJECT_NAME: Final = 127
MAX_DATAREP_STRING: Final = 127
MAX_LIBRARY_VERSION_STRING: Final = 255
MAX_PSET_NAME_LEN: Final = 1023
MAX_STRINGTAG_LEN: Final = 255

# Windows and files: defined so that programs which mention them can be imported, although their calls raise.
WIN_FLAVOR_CREATE: Final = 1
WIN_FLAVOR_ALLOCATE: Final = 2
WIN_FLAVOR_DYNAMIC: Final = 3
WIN_FLAVOR_SHARED: Final = 4
WIN_SEPARATE: Final = 1
WIN_UNIFIED: Final = 2
MODE_NOCHECK: Final = 1
MODE_NOSTORE: Final = 2
MODE_NOPUT: Final = 4
MODE_NOPRECEDE: Final = 8
MODE_NOSUCCEED: Final = 16
LOCK_EXCLUSIVE: Final = 1
LOCK_SHARED: Final = 2
MODE_RDONLY: Final = 2
MODE_RDWR: Final = 8
MODE_WRONLY: Final = 4
MODE_CREATE: Final = 1
MODE_EXCL: Final = 64
MODE_DELETE_ON_CLOSE: Final = 16
MODE_UNIQUE_OPEN: Final = 32
MODE_SEQUENTIAL: Final = 256
MODE_APPEND: Final = 128
SEEK_SET: Final = 0
SEEK_CUR: Final = 1
SEEK_END: Final = 2
DISPLACEMENT_CURRENT: Final = -54278278
DISP_CUR: Final = DISPLACEMENT_CURRENT
