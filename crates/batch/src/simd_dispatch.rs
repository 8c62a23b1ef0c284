//! Loops over numbers, compiled for the vectors of the processor that runs them. The x86-64 baseline has vectors half
//! as wide as most processors do, and cannot compare 64-bit numbers.

/// Calls a function compiled for the widest vectors of this processor. The function must be short enough to be inlined.
#[inline]
pub(crate) fn dispatch_simd<A, R>(function: impl Fn(A) -> R, argument: A) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        fn avx512<A, R>(function: impl Fn(A) -> R, argument: A) -> R {
            function(argument)
        }
        #[target_feature(enable = "avx2")]
        fn avx2<A, R>(function: impl Fn(A) -> R, argument: A) -> R {
            function(argument)
        }
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the feature the function is compiled for was just detected.
            return unsafe { avx512(function, argument) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { avx2(function, argument) };
        }
    }
    function(argument)
}
