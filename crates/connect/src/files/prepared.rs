//! The prepared files and objects in a checkpoint: a single one is stored by itself, as before partition folders
//! existed, and several as a list.

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
/// Those of the encoder: none known.
pub(super) fn encode<T: Serialize>(mut all: Vec<T>) -> Result<Bytes, serde_json::Error> {
    let prepared = match all.len() {
        0 => return Ok(Bytes::new()),
        1 => PreparedFile::One(all.remove(0)),
        _ => PreparedFile::Several(all),
    };
    Ok(serde_json::to_vec(&prepared)?.into())
}

/// # Errors
/// If the bytes are neither empty nor what `encode` produced.
pub(super) fn decode<T: DeserializeOwned>(prepared: &[u8]) -> Result<Vec<T>, serde_json::Error> {
    Ok(match serde_json::from_slice(prepared)? {
        PreparedFile::One(one) => vec![one],
        PreparedFile::Several(all) => all,
    })
}
