//! What the kernel knows about a connection: `TCP_INFO`, and the bytes in its buffer.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::transport::LinkInfo;

/// The kernel's `struct tcp_info` of `linux/tcp.h`, as far as it is read here. Linux 4.10 and later fill all of it;
/// newer kernels append more fields.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct TcpInfo {
    state: u8,
    ca_state: u8,
    retransmits: u8,
    probes: u8,
    backoff: u8,
    options: u8,
    /// Two fields of 4 bits.
    window_scales: u8,
    /// The lowest bit is `tcpi_delivery_rate_app_limited`.
    limited: u8,
    /// From `tcpi_rto` to `tcpi_rcv_ssthresh`.
    skipped: [u32; 15],
    rtt_us: u32,
    /// From `tcpi_rttvar` to `tcpi_rcv_space`.
    skipped_too: [u32; 7],
    total_retrans: u32,
    pacing_rate: u64,
    max_pacing_rate: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segs_out: u32,
    segs_in: u32,
    notsent_bytes: u32,
    min_rtt_us: u32,
    data_segs_in: u32,
    data_segs_out: u32,
    delivery_rate: u64,
    busy_us: u64,
    rwnd_limited_us: u64,
    sndbuf_limited_us: u64,
}

const _: () = {
    assert!(std::mem::offset_of!(TcpInfo, rtt_us) == 68);
    assert!(std::mem::offset_of!(TcpInfo, pacing_rate) == 104);
    assert!(std::mem::offset_of!(TcpInfo, delivery_rate) == 160);
    assert!(size_of::<TcpInfo>() == 192);
};

/// Asks the kernel; `None` if it is too old to know.
pub(super) fn link_info(socket: BorrowedFd<'_>) -> Option<LinkInfo> {
    let mut info = TcpInfo::default();
    let mut len = size_of::<TcpInfo>() as libc::socklen_t;
    // SAFETY: writes at most `len` bytes into `info`, for which all values are valid.
    let rc = unsafe {
        let at = (&raw mut info).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, at, &raw mut len)
    };
    if rc != 0 || (len as usize) < size_of::<TcpInfo>() {
        return None;
    }
    Some(LinkInfo {
        delivery_bytes_s: info.delivery_rate,
        app_limited: info.limited & 1 != 0,
        rtt_us: u64::from(info.rtt_us),
        // The kernel reports `u32::MAX` until it has a measurement.
        min_rtt_us: u64::from(if info.min_rtt_us == u32::MAX { info.rtt_us } else { info.min_rtt_us }),
        acked_bytes: info.bytes_acked,
        buffered_bytes: unacknowledged(socket),
        busy_us: info.busy_us,
        receiver_limited_us: info.rwnd_limited_us,
        buffer_limited_us: info.sndbuf_limited_us,
        retransmits: u64::from(info.total_retrans),
    })
}

/// Bytes handed to the kernel that the other end has not acknowledged; 0 if the socket is no longer connected.
pub(super) fn unacknowledged(socket: BorrowedFd<'_>) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: writes an integer into `bytes`.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if rc == 0 { bytes.max(0) as u64 } else { 0 }
}

/// Makes the kernel accept no more from the sender while it holds this many bytes that it has never sent.
pub(super) fn limit_unsent(socket: BorrowedFd<'_>, bytes: u32) {
    let len = size_of::<u32>() as libc::socklen_t;
    // SAFETY: reads an integer. It fails only if the socket is no longer connected.
    unsafe {
        let at = (&raw const bytes).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, at, len);
    }
}
