//! Rows as a bit mask. With few targets, an exchange marks the rows of each target this way and copies their numbers a
//! vector at a time, with the AVX-512 instructions that move a vector's marked values together (`VPCOMPRESS`).
//!
//! All values are read once for each target, but eight 8-byte values take about as long as two that are fetched one by
//! one.

use std::arch::is_x86_feature_detected as has;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Rows that one word covers.
pub(super) const WORD_ROWS: usize = u64::BITS as usize;

/// Proof that the processor has the required features.
#[derive(Clone, Copy)]
pub(super) struct CompressSupport(());

/// Rows of one batch, one bit each, starting with the lowest bit of the first word. Bits past the end of the batch are
/// 0.
pub(super) struct RowMask {
    rows: usize,
    words: Vec<u64>,
    marked: usize,
}

impl CompressSupport {
    pub(super) fn detect() -> Option<CompressSupport> {
        (has!("avx512f") && has!("avx512bw") && has!("avx512vbmi2") && has!("bmi2") && has!("popcnt"))
            .then_some(CompressSupport(()))
    }

    /// The rows assigned to each of `targets`.
    pub(super) fn mark(self, targets: u32, assigned: &[u32]) -> Vec<RowMask> {
        // SAFETY: the token exists only if the features were detected.
        let words = unsafe { mark(targets, assigned) };
        let marks = |words: Vec<u64>| RowMask {
            rows: assigned.len(),
            marked: words.iter().map(|word| word.count_ones() as usize).sum(),
            words,
        };
        words.into_iter().map(marks).collect()
    }

    /// Copies the marked elements of `values`, numbers of `width` bytes, contiguously into `out`. Returns the number of
    /// bytes written, or `None` for a width that no number has.
    ///
    /// # Panics
    /// If there are fewer values than rows, or if more rows are marked than fit into `out`.
    pub(super) fn fill(
        self,
        width: usize,
        values: &[u8],
        marks: &RowMask,
        out: &mut [MaybeUninit<u8>],
    ) -> Option<usize> {
        let len = marks.marked * width;
        assert!(
            values.len() >= marks.rows * width && out.len() >= len,
            "a value for each row, and room for the marked ones"
        );
        // SAFETY: the token exists only if the features were detected; the lengths have just been checked, and no bit
        // is past `rows`.
        unsafe {
            match width {
                1 => fill_1(values, &marks.words, out),
                2 => fill_2(values, &marks.words, out),
                4 => fill_4(values, &marks.words, out),
                8 => fill_8(values, &marks.words, out),
                16 => fill_16(values, &marks.words, out),
                _ => return None,
            }
        }
        Some(len)
    }
}

impl RowMask {
    /// The number of marked rows.
    pub(super) fn marked(&self) -> usize {
        self.marked
    }

    /// The row numbers that are marked.
    pub(super) fn rows(&self) -> impl Iterator<Item = u32> {
        self.words.iter().enumerate().flat_map(|(at, &word)| {
            let rest = std::iter::successors(Some(word), |word| Some(word & word.wrapping_sub(1)));
            rest.take_while(|word| *word != 0).map(move |word| (at * WORD_ROWS) as u32 + word.trailing_zeros())
        })
    }
}

#[target_feature(enable = "avx512f")]
fn mark(targets: u32, assigned: &[u32]) -> Vec<Vec<u64>> {
    let mut words = vec![Vec::with_capacity(assigned.len().div_ceil(WORD_ROWS)); targets as usize];
    for assigned in assigned.chunks(WORD_ROWS) {
        let lanes: [(__mmask16, __m512i); WORD_ROWS / 16] = std::array::from_fn(|at| {
            let rest = assigned.get(at * 16..).unwrap_or_default();
            let there = ((1_u32 << rest.len().min(16)) - 1) as __mmask16;
            // SAFETY: reads only the elements that exist.
            (there, unsafe { _mm512_maskz_loadu_epi32(there, rest.as_ptr().cast()) })
        });
        for (target, words) in (0..).zip(&mut words) {
            let target = _mm512_set1_epi32(target);
            let marks = lanes.map(|(there, lanes)| u64::from(_mm512_mask_cmpeq_epi32_mask(there, lanes, target)));
            words.push(marks[0] | marks[1] << 16 | marks[2] << 32 | marks[3] << 48);
        }
    }
    words
}

/// For values of this width: the values per vector, the compress instruction, and the mask type.
macro_rules! fill {
    ($name:ident, $width:literal, $lanes:literal, $mask:ty, $wide:expr, $load:ident, $compress:ident, $store:ident) => {
        /// # Safety
        /// There is a value for every bit, and room in `out` for every bit that is set.
        #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
        unsafe fn $name(values: &[u8], words: &[u64], out: &mut [MaybeUninit<u8>]) {
            let wide: fn(u64) -> $mask = $wide;
            let mut to = out.as_mut_ptr();
            let mut room = out.len();
            for (at, &word) in words.iter().enumerate() {
                for lane in (0..WORD_ROWS).step_by($lanes) {
                    let marked = word >> lane & (u64::MAX >> (64 - $lanes));
                    let count = marked.count_ones() as usize;
                    let mask = wide(marked);
                    let from = values.as_ptr().wrapping_add((at * WORD_ROWS + lane) * $width);
                    // SAFETY: values are read and written where bits are set, for which the caller vouches, and a whole
                    // vector is written only where there is room for it. Later writes overwrite the lanes without a
                    // value.
                    unsafe {
                        let together = $compress(mask, $load(mask, from.cast()));
                        if room >= 64 {
                            _mm512_storeu_si512(to.cast(), together);
                        } else {
                            let some = wide((1_u64 << count) - 1);
                            $store(to.cast(), some, together);
                        }
                        to = to.add(count * $width);
                        room -= count * $width;
                    }
                }
            }
        }
    };
}

fill!(
    fill_1,
    1,
    64,
    __mmask64,
    |bits| bits,
    _mm512_maskz_loadu_epi8,
    _mm512_maskz_compress_epi8,
    _mm512_mask_storeu_epi8
);
fill!(
    fill_2,
    2,
    32,
    __mmask32,
    |bits| bits as __mmask32,
    _mm512_maskz_loadu_epi16,
    _mm512_maskz_compress_epi16,
    _mm512_mask_storeu_epi16
);
fill!(
    fill_4,
    4,
    16,
    __mmask16,
    |bits| bits as __mmask16,
    _mm512_maskz_loadu_epi32,
    _mm512_maskz_compress_epi32,
    _mm512_mask_storeu_epi32
);
fill!(
    fill_8,
    8,
    8,
    __mmask8,
    |bits| bits as __mmask8,
    _mm512_maskz_loadu_epi64,
    _mm512_maskz_compress_epi64,
    _mm512_mask_storeu_epi64
);
// Two bits for each value.
fill!(
    fill_16,
    16,
    4,
    __mmask8,
    |bits| PAIRS[bits as usize],
    _mm512_maskz_loadu_epi64,
    _mm512_maskz_compress_epi64,
    _mm512_mask_storeu_epi64
);

/// Each of four bits duplicated.
const PAIRS: [__mmask8; 16] = {
    let mut pairs = [0; 16];
    let mut bits = 0;
    while bits < 16 {
        let mut at = 0;
        while at < 4 {
            pairs[bits] |= ((bits >> at & 1) as u8 * 3) << (2 * at);
            at += 1;
        }
        bits += 1;
    }
    pairs
};
