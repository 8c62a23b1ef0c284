//! Signed checkpoints: without signatures, anyone who can write to the place of checkpoints could choose what a job
//! resumes with; and some of the saved data are pickles, which execute code when they are loaded.
//!
//! A manifest is followed by its HMAC-SHA256. The checksums in it, one for each part of each object, are HMACs as well,
//! truncated to 64 bits, so objects are protected as well as the manifest. An older checkpoint with the same key
//! remains valid: anyone who can write there can still put it back.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use twox_hash::XxHash3_64;

/// The key itself.
const KEY: &str = "TIDEMILL_CHECKPOINT_KEY";
/// The file that contains the key.
const KEY_FILE: &str = "TIDEMILL_CHECKPOINT_KEY_FILE";
/// A shorter key could be guessed.
const KEY_BYTES_MIN: usize = 16;
/// Between a manifest and its signature.
const MARK: &[u8] = b"\nsigned ";
/// In hexadecimal digits.
const SIGNATURE_BYTES: usize = 64;

/// A job's key; `None` if checkpoints are not signed.
#[derive(Clone, Default)]
pub(crate) struct SigningKey(Option<Arc<[u8]>>);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Signing(a key)" } else { "Signing(no key)" })
    }
}

impl SigningKey {
    /// The key that the environment contains or refers to.
    pub(crate) fn of_environment() -> Result<Self, String> {
        let key = match (std::env::var_os(KEY), std::env::var_os(KEY_FILE)) {
            (None, None) => return Ok(SigningKey(None)),
            (Some(_), Some(_)) => return Err(format!("both {KEY} and {KEY_FILE} are set; set one of them")),
            (Some(key), None) => key.into_encoded_bytes(),
            (None, Some(file)) => {
                let read = std::fs::read(Path::new(&file));
                read.map_err(|error| format!("{KEY_FILE}={}: {error}", file.to_string_lossy()))?
            }
        };
        Self::with_key(key.trim_ascii())
    }

    pub(crate) fn with_key(key: &[u8]) -> Result<Self, String> {
        if key.len() < KEY_BYTES_MIN {
            return Err(format!("the key that signs checkpoints must have at least {KEY_BYTES_MIN} bytes"));
        }
        Ok(SigningKey(Some(key.into())))
    }

    /// The checksum of a part of an object.
    pub(crate) fn sum(&self, part: &[u8]) -> u64 {
        let Some(key) = &self.0 else { return XxHash3_64::oneshot(part) };
        let mut mac = mac(key);
        mac.update(b"tidemill checkpoint part\n");
        mac.update(part);
        let whole = mac.finalize().into_bytes();
        u64::from_le_bytes(std::array::from_fn(|at| whole[at]))
    }

    /// A manifest, with its signature if there is a key.
    pub(crate) fn sign(&self, mut manifest: Vec<u8>) -> Vec<u8> {
        let Some(key) = &self.0 else { return manifest };
        let signature = manifest_mac(key, &manifest).finalize().into_bytes();
        manifest.extend_from_slice(MARK);
        for byte in signature {
            manifest.extend_from_slice(format!("{byte:02x}").as_bytes());
        }
        manifest
    }

    /// Removes and verifies the signature of a manifest.
    ///
    /// # Errors
    /// A message that follows the epoch's number.
    pub(crate) fn open<'a>(&self, signed: &'a [u8]) -> Result<&'a [u8], String> {
        let at = signed.len().checked_sub(MARK.len() + SIGNATURE_BYTES);
        let at = at.filter(|&at| signed[at..].starts_with(MARK));
        match (&self.0, at) {
            (None, None) => Ok(signed),
            (None, Some(_)) => Err(format!("it is signed; set {KEY} or {KEY_FILE} to the key that signed it")),
            (Some(_), None) => Err(format!(
                "it is not signed, and only signed checkpoints are read while {KEY} or {KEY_FILE} is set; if you \
                 trust everyone who can write there, read it once without the key"
            )),
            (Some(key), Some(at)) => {
                let (manifest, signature) = (&signed[..at], &signed[at + MARK.len()..]);
                let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
                let bytes = signature.chunks(2).map(|two| Some((digit(two[0])? << 4) | digit(two[1])?));
                let bytes = bytes.collect::<Option<Vec<u8>>>().unwrap_or_default();
                // Takes the same time for any signature.
                match manifest_mac(key, manifest).verify_slice(&bytes) {
                    Ok(()) => Ok(manifest),
                    Err(_) => Err("it was signed with another key, or has changed since".into()),
                }
            }
        }
    }
}

fn mac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("a key of any length will do")
}

fn manifest_mac(key: &[u8], manifest: &[u8]) -> Hmac<Sha256> {
    let mut mac = mac(key);
    mac.update(b"tidemill checkpoint manifest\n");
    mac.update(manifest);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A signature depends on the key and on every byte; without a key, nothing is added.
    #[test]
    fn signatures_depend_on_the_key_and_the_bytes() {
        let (one, other) = (SigningKey::with_key(&[7; 16]).unwrap(), SigningKey::with_key(&[8; 32]).unwrap());
        let signed = one.sign(b"manifest".to_vec());
        assert_eq!(one.open(&signed).unwrap(), b"manifest");
        assert!(other.open(&signed).unwrap_err().contains("another key"));
        assert!(SigningKey::default().open(&signed).unwrap_err().contains(KEY));
        assert!(one.open(b"manifest").unwrap_err().contains("not signed"));
        for at in 0..signed.len() {
            let mut changed = signed.clone();
            changed[at] ^= 1;
            assert!(one.open(&changed).is_err(), "byte {at}");
        }
        assert_eq!(SigningKey::default().sign(b"m".to_vec()), b"m");
        assert_eq!(SigningKey::default().sum(b"part"), XxHash3_64::oneshot(b"part"));
        assert_ne!(one.sum(b"part"), other.sum(b"part"));
        assert!(SigningKey::with_key(b"short").is_err());
    }
}
