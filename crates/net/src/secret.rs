//! The secret that the workers of a job share, and the key derived from it.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// What only the workers of one job know: 32 random bytes, drawn by whoever starts the job.
#[derive(Clone, PartialEq, Eq)]
pub struct JobSecret([u8; 32]);

impl JobSecret {
    /// A new secret from the operating system.
    ///
    /// # Panics
    /// If the operating system has no randomness, which does not happen on Linux after boot.
    pub fn random() -> Self {
        JobSecret(random_bytes())
    }

    /// Parses the 64 hexadecimal digits of `TIDEMILL_SECRET`.
    pub fn from_hex(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if text.len() != 64 {
            return None;
        }
        let digit = |c: u8| (c as char).to_digit(16).map(|d| d as u8);
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(JobSecret(bytes))
    }

    /// Formats it as 64 hexadecimal digits, for the environment of a worker. Keep it out of logs and command lines.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A secret that anybody who knows `text` can compute. Only for launchers that offer nothing better; callers must
    /// tell the user so.
    pub(crate) fn from_public(text: &str) -> Self {
        JobSecret(Sha256::digest(format!("tidemill public {text}")).into())
    }
}

impl fmt::Debug for JobSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobSecret(..)")
    }
}

pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

/// The secret combined with the job's name: workers of two jobs with the same secret still refuse each other.
#[derive(Clone)]
pub struct JobKey(Hmac<Sha256>);

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

impl JobKey {
    /// The key of the job called `job` with `secret`.
    pub fn new(secret: &JobSecret, job: &str) -> Self {
        let mut outer = Hmac::<Sha256>::new_from_slice(&secret.0).expect("HMAC takes keys of any length");
        outer.update(b"tidemill job ");
        outer.update(job.as_bytes());
        let inner = outer.finalize().into_bytes();
        JobKey(Hmac::new_from_slice(&inner).expect("HMAC takes keys of any length"))
    }

    pub(crate) fn prove(&self, label: &[u8], transcript: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(label);
        mac.update(transcript);
        mac
    }
}
