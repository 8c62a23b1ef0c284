//! Entry points for fuzz targets and property tests, which decode arbitrary bytes as the parts of checkpoints. A
//! decoder must not panic, must not read beyond a message, and must not accept damaged input.

use crate::manifest::{CopyReport, Manifest};
use crate::marks::Barrier;
use crate::reports::ReportBundle;

/// The number of copies of each task in the job whose reports are decoded.
const COPIES: [u32; 4] = [7, 1, 200, 3];

/// Decodes the bytes as a manifest, a report, several reports, and a barrier. Panics if a decoded value does not encode
/// to the same bytes. Returns how many of the four succeeded.
pub fn checkpoints(bytes: &[u8]) -> usize {
    let manifest = Manifest::decode(bytes).ok();
    if let Some(manifest) = &manifest {
        assert_eq!(Manifest::decode(&manifest.encode()).as_ref(), Ok(manifest));
        assert!(manifest.state_bytes() > 0 || manifest.files().is_empty());
    }
    let report = CopyReport::decode(bytes).ok();
    if let Some(report) = &report {
        assert_eq!(CopyReport::decode(&report.encode()).as_ref(), Ok(report));
    }
    let bundle = ReportBundle::decode(bytes, &COPIES).ok();
    if let Some(bundle) = &bundle {
        assert_eq!(ReportBundle::decode(&bundle.encode(), &COPIES).as_ref(), Ok(bundle));
        // Each copy has nothing to save once at most; the others take some bytes each.
        let most = COPIES.iter().sum::<u32>() as usize + bytes.len() / 16;
        assert!(bundle.clone().into_reports().take(most + 1).count() <= most);
    }
    let barrier = Barrier::decode(bytes).ok();
    if let Some(barrier) = &barrier {
        assert_eq!(Barrier::decode(&barrier.encode()).as_ref(), Ok(barrier));
    }
    let reports = usize::from(report.is_some()) + usize::from(bundle.is_some());
    usize::from(manifest.is_some()) + reports + usize::from(barrier.is_some())
}

/// A manifest with this JSON and a valid checksum, which mutation alone would never find.
pub fn manifest(json: &[u8]) -> Vec<u8> {
    Manifest::around(json)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MANIFEST: &str = r#"{"job":"j","claim":1,"epoch":4,"at_ms":5,"finished":false,"tasks":{"t":{"copies":2,
        "ended":[1],"buckets":{"3":[{"file":"a","offset":0,"len":18446744073709551615,"sum":1,"whole":true},
        {"file":"a","offset":9,"len":9,"sum":1,"whole":false}]},
        "splits":{"0":[["s",{"file":"b","offset":0,"len":2,"sum":3,"whole":true}]]},"shared":{}}}}"#;
    const REPORT: &str = r#"{"task":1,"copy":2,"said":{"Saved":{"epoch":3,"parts":
        [[{"Bucket":7},{"file":"a","offset":0,"len":9,"sum":1,"whole":true}]]}}}"#;
    const BARRIER: &str = r#"{"epoch":3,"control":"Stop"}"#;
    const REBALANCE: &str = r#"{"epoch":3,"control":{"Rebalance":{"maps":{
        "s":{"version":2,"owners":[0,1,1,0]},"t":{"version":5,"owners":[1]}}}}}"#;
    const BUNDLE: &str = r#"{"empty":[{"epoch":3,"task":0,"copies":[[0,2],[5,2]]},{"epoch":3,"task":2,
        "copies":[[9,190]]}],"others":[{"task":3,"copy":2,"said":{"Full":{"behind":9}}}]}"#;
    const MOVED: &str =
        r#"{"task":1,"copy":2,"said":{"Moved":{"epoch":3,"buckets":4,"bytes":5,"waited":{"secs":0,"nanos":6}}}}"#;

    #[test]
    fn examples_are_decoded() {
        assert_eq!(checkpoints(&manifest(MANIFEST.as_bytes())), 1);
        assert_eq!((checkpoints(REPORT.as_bytes()), checkpoints(BARRIER.as_bytes())), (1, 1));
        assert_eq!((checkpoints(MOVED.as_bytes()), checkpoints(REBALANCE.as_bytes())), (1, 1));
        assert_eq!(checkpoints(REBALANCE.replace("[0,1,1,0]", "[]").as_bytes()), 0, "a map without buckets is refused");
        assert_eq!(checkpoints(BUNDLE.as_bytes()), 1);
        assert_eq!(checkpoints(BUNDLE.replace("190", "4294967286").as_bytes()), 0, "unknown copies are refused");
        let unknown = BARRIER.replace("Stop", "Go");
        assert_eq!(checkpoints(unknown.as_bytes()), 0, "an unknown control is refused");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(checkpoints(&bytes), 0);
            prop_assert_eq!(checkpoints(&manifest(&bytes)), 0);
        }

        /// With or without a valid checksum, changed input is refused, or is consistent.
        #[test]
        fn changed_checkpoints_are_refused_or_consistent(
            which in 0usize..6, at in any::<prop::sample::Index>(), byte in any::<u8>(), remove in 0usize..9,
        ) {
            let mut bytes = [MANIFEST, REPORT, BARRIER, REBALANCE, MOVED, BUNDLE][which].as_bytes().to_vec();
            let at = at.index(bytes.len());
            let to = (at + remove).min(bytes.len());
            bytes.splice(at..to, [byte]);
            checkpoints(&bytes);
            checkpoints(&manifest(&bytes));
        }
    }
}
