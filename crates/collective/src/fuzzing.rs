//! Entry points for fuzz targets and property tests that feed in arbitrary bytes. Each function panics when a decoder
//! misbehaves.

use crate::{TuneTable, parcel};

/// A table of measured choices, as `tidemill tune` writes it and users edit it.
pub fn table(text: &str) {
    if let Ok(table) = TuneTable::parse(text, "the fuzzer") {
        let written = table.to_text();
        let again = TuneTable::parse(&written, "the fuzzer again").expect("what was written can be read");
        assert_eq!(again.to_text(), written);
    }
}

/// The message that precedes an object's arrays.
pub fn parcel(bytes: &[u8]) {
    if let Some((key, lengths, start)) = parcel::decode(bytes) {
        assert!(start <= bytes.len() && lengths.len() <= bytes.len() / 8);
        // A message without arrays may have an unnecessary prefix.
        if !lengths.is_empty() {
            let lengths: Vec<usize> = lengths.iter().map(|&len| len as usize).collect();
            assert_eq!(parcel::encode(&bytes[start..], key, &lengths), bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Half of the inputs start like a parcel.
        #[test]
        fn any_bytes_are_a_parcel_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..80), begins: bool, count in 0u8..4) {
            let start: &[u8] = if begins { &[0, 1, 2, 3, 0x80, count, 0, 0, 0] } else { &[] };
            parcel(&[start, &bytes].concat());
        }

        /// Rules made of plausible words, in any order, with the end cut off.
        #[test]
        fn any_table_is_read_or_refused(
            version in 1u8..4, rules in prop::collection::vec(rule(), 0..4), link in prop::option::of(any::<[f64; 3]>()),
            cut in any::<prop::sample::Index>(), whole: bool,
        ) {
            let links = link.map_or_else(String::new, |[a, b, c]| format!("[links]\nsame_host = [{a:e}, {b:e}, {c:e}]\n"));
            let text = format!("version = {version}\nrules = [{}]\n{links}", rules.join(",\n"));
            let end = if whole { text.len() } else { cut.index(text.len()) };
            table(&text[..end]);
        }
    }

    fn rule() -> impl Strategy<Value = String> {
        (
            prop::sample::select(vec!["allreduce", "bcast", "scan", "fold"]),
            (0u32..4, 0u32..3),
            prop::option::of(any::<u64>()),
            prop::sample::select(vec!["ring", "linear", "chain", "shared_memory"]),
            prop::option::of(any::<u64>()),
            prop::option::of(prop::sample::select(vec!["shared_memory", "ring"])),
            prop::option::of(prop::sample::select(vec!["any", "in_order", "repeatable", "none"])),
        )
            .prop_map(|(collective, (ranks, hosts), bytes, algorithm, chunk, blocking, order)| {
                let mut rule = format!(
                    "collective = \"{collective}\", ranks = {ranks}, hosts = {hosts}, algorithm = \"{algorithm}\""
                );
                bytes.into_iter().for_each(|bytes| rule += &format!(", bytes_max = {bytes}"));
                chunk.into_iter().for_each(|chunk| rule += &format!(", chunk_bytes = {chunk}"));
                blocking.into_iter().for_each(|blocking| rule += &format!(", blocking = \"{blocking}\""));
                order.into_iter().for_each(|order| rule += &format!(", order = \"{order}\""));
                format!("{{ {rule} }}")
            })
    }
}
