//! What a checkpoint keeps of files and objects that are ready: one by itself, as before there were folders of values,
//! or several.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PreparedFile<T> {
    One(T),
    Several(Vec<T>),
}

/// # Errors
/// Of the encoder: none known.
pub(super) fn encode<T: Serialize>(mut all: Vec<T>) -> Result<Bytes, serde_json::Error> {
    let prepared = match all.len() {
        0 => return Ok(Bytes::new()),
        1 => PreparedFile::One(all.remove(0)),
        _ => PreparedFile::Several(all),
    };
    Ok(serde_json::to_vec(&prepared)?.into())
}

/// # Errors
/// If it is something else than what was encoded, which is not nothing.
pub(super) fn decode<T: DeserializeOwned>(prepared: &[u8]) -> Result<Vec<T>, serde_json::Error> {
    Ok(match serde_json::from_slice(prepared)? {
        PreparedFile::One(one) => vec![one],
        PreparedFile::Several(all) => all,
    })
}
