//! The AMX tiles of one thread, and the products computed with them. Rust has no stable intrinsics for AMX yet, so this
//! uses assembly. Tiles keep their values between blocks: the compiler does not know them, so nothing else can touch
//! them.

use std::arch::asm;
use std::marker::PhantomData;

/// Bytes of a full tile; rows of 64 bytes.
pub(super) const TILE: usize = 1024;

/// Points, or centers, along one side of a tile.
pub(super) const SIDE: usize = 16;

/// The operand of `ldtilecfg`.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_per_row: [u16; 16],
    rows: [u8; 16],
}

/// The tiles of this thread, configured for products of one shape: `tmm0` to `tmm3` are sums, `tmm4` and `tmm5`
/// centers, `tmm6` and `tmm7` points. Must stay on its thread.
pub(super) struct ConfiguredTiles(PhantomData<*const ()>);

impl ConfiguredTiles {
    /// Configures tiles for `width` centers, at most 16, and `bytes` features in a step, at most 64 and a multiple of
    /// 4.
    ///
    /// # Safety
    /// The processor has AMX, and the operating system has allowed its use.
    pub(super) unsafe fn new(width: usize, bytes: usize) -> Self {
        assert!(width <= SIDE && bytes <= 64 && bytes.is_multiple_of(4), "a tile holds 16 rows of 64 bytes");
        let mut configuration =
            TileConfig { palette: 1, start_row: 0, reserved: [0; 14], bytes_per_row: [0; 16], rows: [0; 16] };
        for tile in 0..8 {
            let (rows, row) = match tile {
                0..4 => (width, 64),
                4..6 => (width, bytes),
                _ => (bytes / 4, 64),
            };
            configuration.rows[tile] = rows as u8;
            configuration.bytes_per_row[tile] = row as u16;
        }
        // SAFETY: by the caller's promise; the configuration is valid for palette 1, with at most 16 rows of 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &configuration, options(nostack, readonly, preserves_flags)) };
        ConfiguredTiles(PhantomData)
    }
}

impl Drop for ConfiguredTiles {
    fn drop(&mut self) {
        // SAFETY: a value exists only if AMX does.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// Sums of `high high` and of `high low + low high`, for each center of a tile and two vectors of points.
#[repr(C, align(64))]
pub(super) struct TileProducts {
    /// High sums of the first 16 points and of the second 16, then low sums of both: center after center.
    pub(super) sums: [[[i32; SIDE]; SIDE]; 4],
}

impl ConfiguredTiles {
    /// Sets the sums to zero.
    #[inline(always)]
    pub(super) fn clear(&mut self) {
        // SAFETY: the tiles are configured, as `self` proves.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                options(nostack, nomem, preserves_flags),
            );
        }
    }

    /// Adds the first half of a step's products. Products for the same sum are three apart, which covers the latency of
    /// one.
    ///
    /// # Safety
    /// `centres` begins the two tiles of a step of centers, and `points` the four of a step of the panel.
    #[inline(always)]
    pub(super) unsafe fn add_first(&mut self, centres: *const i8, points: *const i8) {
        // SAFETY: the tiles are configured, as `self` proves; the rest is the caller's promise.
        unsafe {
            asm!(
                "tileloadd tmm5, [{centres} + {row}*1 + 1024]",
                "tileloadd tmm6, [{points} + {row}*1]",
                "tdpbssd tmm2, tmm5, tmm6",
                "tileloadd tmm4, [{centres} + {row}*1]",
                "tdpbssd tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{points} + {row}*1 + 1024]",
                "tdpbssd tmm3, tmm5, tmm7",
                centres = in(reg) centres,
                points = in(reg) points,
                row = in(reg) 64usize,
                out("tmm0") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    /// Adds the second half of a step's products. The first half has left the centers' high digits in `tmm4`, and those
    /// of the second points in `tmm7`.
    ///
    /// # Safety
    /// As [`ConfiguredTiles::add_first`], for the same step.
    #[inline(always)]
    pub(super) unsafe fn add_second(&mut self, points: *const i8) {
        // SAFETY: as `add_first`.
        unsafe {
            asm!(
                "tileloadd tmm6, [{points} + {row}*1 + 2048]",
                "tdpbssd tmm2, tmm4, tmm6",
                "tdpbssd tmm1, tmm4, tmm7",
                "tileloadd tmm7, [{points} + {row}*1 + 3072]",
                "tdpbssd tmm3, tmm4, tmm7",
                points = in(reg) points,
                row = in(reg) 64usize,
                out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags),
            );
        }
    }

    /// Writes the sums.
    #[inline(always)]
    pub(super) fn store(&mut self, products: &mut TileProducts) {
        // SAFETY: the tiles are configured, as `self` proves; each sum has room for 16 rows of 64 bytes.
        unsafe {
            asm!(
                "tilestored [{sums} + {row}*1], tmm0",
                "tilestored [{sums} + {row}*1 + 1024], tmm1",
                "tilestored [{sums} + {row}*1 + 2048], tmm2",
                "tilestored [{sums} + {row}*1 + 3072], tmm3",
                row = in(reg) 64usize,
                sums = in(reg) products.sums.as_mut_ptr(),
                options(nostack, preserves_flags),
            );
        }
    }
}
