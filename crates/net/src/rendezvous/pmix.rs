//! Meeting through PMIx, the interface of Open MPI's `mpirun` and of `srun --mpi=pmix`. The library is loaded at run
//! time; nothing is linked.
//!
//! `PMIx_Finalize` is called only when the process exits normally, for the reasons given in [`super::pmi1`].
//!
//! Source: PMIx Standard 4.1 (layouts of `pmix_proc_t`, `pmix_value_t`, `pmix_info_t`), stable since PMIx 2.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Instant;

use libloading::Library;

use crate::threads::{check_interrupt, spawn_native};

/// The loader's names, and where distributions put the library.
const NAMES: [&str; 4] = [
    "libpmix.so.2",
    "libpmix.so",
    "/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so.2",
    "/usr/lib/aarch64-linux-gnu/pmix2/lib/libpmix.so.2",
];

const KEY: &CStr = c"tidemill.root";
const COLLECT_DATA: &[u8] = b"pmix.collect";
const SUCCESS: c_int = 0;
const GLOBAL: u8 = 3;
const TYPE_BOOL: u16 = 1;
const TYPE_STRING: u16 = 3;

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct PmixProcess {
    nspace: [c_char; 256],
    rank: u32,
}

/// `pmix_value_t`: a type and a union of at most 24 bytes, of which only a string pointer and a flag are used.
#[repr(C)]
struct PmixValue {
    kind: u16,
    data: [*mut c_void; 3],
}

/// `pmix_info_t`.
#[repr(C)]
struct PmixInfo {
    key: [u8; 512],
    flags: u32,
    value: PmixValue,
}

type InitFn = unsafe extern "C" fn(*mut PmixProcess, *mut PmixInfo, usize) -> c_int;
type FinalizeFn = unsafe extern "C" fn(*const PmixInfo, usize) -> c_int;
type PutFn = unsafe extern "C" fn(u8, *const c_char, *mut PmixValue) -> c_int;
type CommitFn = unsafe extern "C" fn() -> c_int;
type FenceFn = unsafe extern "C" fn(*const PmixProcess, usize, *const PmixInfo, usize) -> c_int;
type GetFn =
    unsafe extern "C" fn(*const PmixProcess, *const c_char, *const PmixInfo, usize, *mut *mut PmixValue) -> c_int;
type ErrorFn = unsafe extern "C" fn(c_int) -> *const c_char;

/// Rank 0 publishes `card`, and the others receive it. Returns when all workers have called, or at the deadline: PMIx
/// itself waits without a limit, so it runs in a thread, which is then left behind.
pub(super) fn exchange(card: Option<&str>, deadline: Instant) -> Result<String, String> {
    let card = card.map(str::to_owned);
    let (sender, receiver) = mpsc::channel();
    let work = move || drop(sender.send(exchange_blocking(card)));
    spawn_native("tidemill-pmix".into(), work).map_err(|e| e.to_string())?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let interval = check_interrupt().map_err(|e| e.to_string())?.unwrap_or(left);
        match receiver.recv_timeout(interval.min(left)) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) if interval < left => {}
            Err(_) => return Err("not all workers reached the launcher's PMIx fence in time".into()),
        }
    }
}

fn exchange_blocking(card: Option<String>) -> Result<String, String> {
    // SAFETY: loads a C library, whose constructors do nothing unusual; it stays loaded, see below.
    let library = NAMES.into_iter().find_map(|name| unsafe { Library::new(name) }.ok());
    let library = library.ok_or_else(|| format!("the PMIx library ({}) was not found", NAMES[0]))?;
    // Its threads and exit handlers run until the end of the process.
    let library: &'static Library = Box::leak(Box::new(library));
    // SAFETY: the types match the PMIx standard.
    let symbols = unsafe {
        (|| -> Result<_, libloading::Error> {
            Ok((
                library.get::<InitFn>(b"PMIx_Init\0")?,
                library.get::<FinalizeFn>(b"PMIx_Finalize\0")?,
                library.get::<PutFn>(b"PMIx_Put\0")?,
                library.get::<CommitFn>(b"PMIx_Commit\0")?,
                library.get::<FenceFn>(b"PMIx_Fence\0")?,
                library.get::<GetFn>(b"PMIx_Get\0")?,
                library.get::<ErrorFn>(b"PMIx_Error_string\0")?,
            ))
        })()
    };
    let (init, finalize, put, commit, fence, get, error) = symbols.map_err(|e| format!("PMIx: {e}"))?;
    let check = |what: &str, status: c_int| -> Result<(), String> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: returns a static string for any status.
        let text = unsafe { error(status) };
        // SAFETY: zero-terminated, if there is one.
        let text = if text.is_null() { "?".into() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy() };
        Err(format!("{what}: {text} ({status})"))
    };

    let mut me = PmixProcess { nspace: [0; 256], rank: 0 };
    // SAFETY: `me` is filled in; no directives.
    check("PMIx_Init", unsafe { init(&mut me, std::ptr::null_mut(), 0) })?;
    finalize_at_exit(*finalize);
    if let Some(card) = &card {
        let text = CString::new(card.as_str()).map_err(|e| e.to_string())?;
        let mut value = PmixValue { kind: TYPE_STRING, data: [std::ptr::null_mut(); 3] };
        value.data[0] = text.as_ptr().cast_mut().cast();
        // SAFETY: key and value are copied by the call and live until after it.
        check("PMIx_Put", unsafe { put(GLOBAL, KEY.as_ptr(), &mut value) })?;
        // SAFETY: no arguments.
        check("PMIx_Commit", unsafe { commit() })?;
    }
    let mut collect =
        PmixInfo { key: [0; 512], flags: 0, value: PmixValue { kind: TYPE_BOOL, data: [std::ptr::null_mut(); 3] } };
    collect.key[..COLLECT_DATA.len()].copy_from_slice(COLLECT_DATA);
    collect.value.data[0] = std::ptr::without_provenance_mut(1); // The flag is the union's first byte.
    // SAFETY: one directive; no processes means all of the job.
    check("PMIx_Fence", unsafe { fence(std::ptr::null(), 0, &collect, 1) })?;
    if let Some(card) = card {
        return Ok(card);
    }
    let root = PmixProcess { rank: 0, ..me };
    let mut value: *mut PmixValue = std::ptr::null_mut();
    // SAFETY: on success `value` points to a value that we own; it is leaked, since it is one small string per job.
    check("PMIx_Get", unsafe { get(&root, KEY.as_ptr(), std::ptr::null(), 0, &mut value) })?;
    if value.is_null() {
        return Err("PMIx_Get returned nothing".into());
    }
    // SAFETY: not null, and a `pmix_value_t` by the standard.
    let value = unsafe { &*value };
    if value.kind != TYPE_STRING || value.data[0].is_null() {
        return Err("PMIx_Get returned a different value from the one stored".into());
    }
    // SAFETY: a value of type string holds a zero-terminated string.
    Ok(unsafe { CStr::from_ptr(value.data[0].cast()) }.to_string_lossy().into_owned())
}

static FINALIZE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static OWNER: AtomicU32 = AtomicU32::new(0);

/// Without this call, the launcher treats the end of this process as a failure, as it should if the process does not
/// reach its exit handlers.
fn finalize_at_exit(finalize: FinalizeFn) {
    extern "C" fn run() {
        let finalize = FINALIZE.swap(std::ptr::null_mut(), Ordering::Relaxed);
        // A forked child must not speak for its parent.
        if finalize.is_null() || OWNER.load(Ordering::Relaxed) != std::process::id() {
            return;
        }
        // SAFETY: stored below from a function of this type, in a library that is never unloaded.
        let finalize: FinalizeFn = unsafe { std::mem::transmute(finalize) };
        // SAFETY: pairs with the `PMIx_Init` above; no directives.
        unsafe { finalize(std::ptr::null(), 0) };
    }
    OWNER.store(std::process::id(), Ordering::Relaxed);
    if FINALIZE.swap(finalize as *mut c_void, Ordering::Relaxed).is_null() {
        // SAFETY: registers a plain function.
        unsafe { libc::atexit(run) };
    }
}
