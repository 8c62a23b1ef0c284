//! The vector operations the kernels need, once for each instruction set, chosen at run time.
//!
//! | module     | vectors                 | needs             |
//! |------------|-------------------------|-------------------|
//! | [`scalar`] | 1 x f32, 1 x f64        | nothing           |
//! | `avx2`     | 8 x f32, 4 x f64        | AVX2 and FMA      |
//! | `avx512`   | 16 x f32, 8 x f64       | AVX-512F and FMA  |
//! | `avx512vnni` | the same, and pairs of 16-bit integers | AVX-512 F, BW, VL and VNNI |
//! | `amx`      | the same, and tiles of 8-bit integers | also AMX-INT8, and Linux |
//! | `neon`     | 4 x f32, 2 x f64        | any 64-bit ARM    |
//!
//! Invariant: a [`Simd`] token exists only if its instruction set does, because [`Isa`] cannot name a set that the
//! processor lacks, and [`dispatch`] makes tokens only from an `Isa`. So the arithmetic is safe to call; only loads and
//! stores through pointers are `unsafe`.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use std::fmt::Debug;

/// A floating-point type the kernels work on: `f32` or `f64`.
pub trait FloatElement: Copy + Default + PartialOrd + Debug + Send + Sync + 'static {
    /// Distance from 1.0 to the next larger value.
    const EPSILON: f64;
    /// Largest integer below which every integer is exact; center numbers are stored as values of this type.
    const INTEGER_MAX: u64;
    #[doc(hidden)]
    type Scalar: Simd<Elem = Self>;
    #[cfg(target_arch = "x86_64")]
    #[doc(hidden)]
    type Avx2: Simd<Elem = Self>;
    #[cfg(target_arch = "x86_64")]
    #[doc(hidden)]
    type Avx512: Simd<Elem = Self>;
    #[cfg(target_arch = "aarch64")]
    #[doc(hidden)]
    type Neon: Simd<Elem = Self>;
    /// The value as `f64`, exactly.
    fn to_f64(self) -> f64;
    /// The nearest value of this type.
    fn from_f64(value: f64) -> Self;
    /// `self - other`, rounded to this type.
    fn minus(self, other: Self) -> Self;
}

macro_rules! element {
    ($t:ty, $bits:expr, $scalar:ty, $avx2:ty, $avx512:ty, $neon:ty) => {
        impl FloatElement for $t {
            const EPSILON: f64 = <$t>::EPSILON as f64;
            const INTEGER_MAX: u64 = 1 << $bits;
            type Scalar = $scalar;
            #[cfg(target_arch = "x86_64")]
            type Avx2 = $avx2;
            #[cfg(target_arch = "x86_64")]
            type Avx512 = $avx512;
            #[cfg(target_arch = "aarch64")]
            type Neon = $neon;
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $t
            }
            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self - other
            }
        }
    };
}
element!(f32, 24, scalar::ScalarF32, avx2::Avx2F32, avx512::Avx512F32, neon::NeonF32);
element!(f64, 53, scalar::ScalarF64, avx2::Avx2F64, avx512::Avx512F64, neon::NeonF64);

/// One instruction set with one element type. A value of it proves that the processor has the set.
pub trait Simd: Copy {
    /// Element of a vector.
    type Elem: FloatElement;
    /// A vector of [`Self::LANES`] elements.
    type V: Copy;
    /// The lanes in which a comparison held.
    type M: Copy;
    /// Number of elements in a vector.
    const LANES: usize;
    /// Centers in the distance tile, which is [`WIDE`] vectors of points wide: as many as fill the registers without
    /// spilling.
    const TILE: usize;

    /// Makes the token.
    ///
    /// # Safety
    /// The processor has the instruction set.
    unsafe fn assume_present() -> Self;
    /// `x` in every lane.
    fn splat(self, x: Self::Elem) -> Self::V;
    /// Reads `LANES` elements, unaligned.
    ///
    /// # Safety
    /// `LANES` elements at `p` are readable.
    unsafe fn load(self, p: *const Self::Elem) -> Self::V;
    /// Writes `LANES` elements, unaligned.
    ///
    /// # Safety
    /// `LANES` elements at `p` are writable.
    unsafe fn store(self, p: *mut Self::Elem, v: Self::V);
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `1 / sqrt(v)` of positive, normal `v`; within a few units in the last place.
    fn rsqrt(self, v: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, rounded once.
    fn neg_mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The smaller in each lane.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger in each lane.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Lanes in which `a < b`.
    fn lt(self, a: Self::V, b: Self::V) -> Self::M;
    /// `a` where `m` holds, else `b`.
    fn select(self, m: Self::M, a: Self::V, b: Self::V) -> Self::V;
    /// One bit per lane, with lane 0 lowest.
    fn bits(self, m: Self::M) -> u32;
    /// Merges candidate `number` with value `v` into the two smallest values so far and the number of the smallest.
    #[inline(always)]
    fn keep_nearest(self, v: Self::V, number: Self::V, best: &mut Self::V, second: &mut Self::V, index: &mut Self::V) {
        let nearer = self.lt(v, *best);
        *second = self.min(*second, self.max(v, *best));
        *best = self.min(v, *best);
        *index = self.select(nearer, number, *index);
    }
    /// Reads the `BLOCK` features at each of `LANES` row pointers, and writes them feature by feature: feature `f` of
    /// all rows goes to `dst[f * stride ..]`, in row order.
    ///
    /// # Safety
    /// [`Self::BLOCK`] elements at each of the first `LANES` pointers are readable, and `LANES` elements at
    /// `dst + f * stride` writable for every `f < BLOCK`.
    unsafe fn transpose(self, rows: &[*const Self::Elem], dst: *mut Self::Elem, stride: usize);
    /// Features that [`Self::transpose`] moves per call.
    const BLOCK: usize;
}

/// Vectors of points side by side in the distance tile.
pub(crate) const WIDE: usize = 2;

/// An instruction set that this processor supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(IsaKind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IsaKind {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Amx,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Isa {
    /// Every set that this processor supports, simplest first.
    #[must_use]
    pub fn available() -> Vec<Isa> {
        let mut sets = vec![Isa(IsaKind::Scalar)];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            sets.push(Isa(IsaKind::Avx2));
            if is_x86_feature_detected!("avx512f") {
                sets.push(Isa(IsaKind::Avx512));
                let vnni = is_x86_feature_detected!("avx512vnni");
                if vnni && is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
                    sets.push(Isa(IsaKind::Avx512Vnni));
                    #[cfg(target_os = "linux")]
                    if amx::is_usable() {
                        sets.push(Isa(IsaKind::Amx));
                    }
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        sets.push(Isa(IsaKind::Neon));
        sets
    }

    /// The widest set that this processor supports.
    #[must_use]
    pub fn best() -> Isa {
        *Self::available().last().expect("the scalar set is always there")
    }

    /// The set with that name (`scalar`, `avx2`, `avx512`, `avx512vnni`, `amx`, `neon`), or `None` if the processor
    /// lacks it.
    #[must_use]
    pub fn named(name: &str) -> Option<Isa> {
        Self::available().into_iter().find(|isa| isa.name() == name)
    }

    /// Whether it multiplies pairs of 16-bit integers: AVX-512 F, BW, VL and VNNI.
    #[must_use]
    pub fn has_pairs(self) -> bool {
        matches!(self.name(), "avx512vnni" | "amx")
    }

    /// Whether it multiplies tiles of 8-bit integers: AMX-INT8, in addition to what pairs need.
    #[must_use]
    pub fn has_tiles(self) -> bool {
        self.name() == "amx"
    }

    /// Its name in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            IsaKind::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            IsaKind::Avx512Vnni => "avx512vnni",
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            IsaKind::Amx => "amx",
            #[cfg(target_arch = "aarch64")]
            IsaKind::Neon => "neon",
        }
    }
}

/// A computation written once over [`Simd`]. Mark `run` and everything it calls `#[inline(always)]`, so that it is
/// compiled as a whole for each instruction set.
pub(crate) trait Kernel<T: FloatElement> {
    /// The type of its result.
    type Output;
    /// Runs with the instruction set of the token.
    fn run<S: Simd<Elem = T>>(self, simd: S) -> Self::Output;
}

/// Runs `kernel` compiled for `isa`.
pub(crate) fn dispatch<T: FloatElement, K: Kernel<T>>(isa: Isa, kernel: K) -> K::Output {
    match isa.0 {
        // SAFETY: the scalar set needs nothing.
        IsaKind::Scalar => kernel.run(unsafe { T::Scalar::assume_present() }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` holds this variant only after detection of these features.
        IsaKind::Avx2 => unsafe { run_avx2(kernel) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        IsaKind::Avx512 | IsaKind::Avx512Vnni => unsafe { run_avx512(kernel) },
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        // SAFETY: as above.
        IsaKind::Amx => unsafe { run_avx512(kernel) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: every 64-bit ARM has NEON.
        IsaKind::Neon => kernel.run(unsafe { T::Neon::assume_present() }),
    }
}

/// Prefetches the cache line at `p`, which need not exist.
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, and every x86-64 has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2<T: FloatElement, K: Kernel<T>>(kernel: K) -> K::Output {
    // SAFETY: the features of this function are those the token stands for.
    kernel.run(unsafe { T::Avx2::assume_present() })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
fn run_avx512<T: FloatElement, K: Kernel<T>>(kernel: K) -> K::Output {
    // SAFETY: the features of this function are those the token stands for.
    kernel.run(unsafe { T::Avx512::assume_present() })
}

#[cfg(test)]
mod tests;
