//! Whether AMX exists and may be used: Linux grants a process the large AMX state only on request.

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// Whether this process may use AMX-INT8; the first call asks the kernel, for all current and future threads.
pub(super) fn is_usable() -> bool {
    static USABLE: OnceLock<bool> = OnceLock::new();
    *USABLE.get_or_init(|| {
        const AMX_TILE: u32 = 1 << 24;
        const AMX_INT8: u32 = 1 << 25;
        const WANTED: u32 = AMX_TILE | AMX_INT8;
        if __cpuid(0).eax < 7 || __cpuid_count(7, 0).edx & WANTED != WANTED {
            return false;
        }
        const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_long = 18;
        // SAFETY: the call takes two numbers and no pointer; kernels that do not support it return an error.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    })
}
