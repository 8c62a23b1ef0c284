//! Authenticates posts, by a token or by a signature of the body. Both comparisons take constant time, because the
//! response time would otherwise reveal how much of a guess is right.

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName};
use ring::hmac::{self, HMAC_SHA256, Key};
use ring::rand::SystemRandom;
use serde::Deserialize;

use crate::options::SecretText;

/// The method; the secrets come only from the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PayloadAuth {
    /// `Authorization: Bearer` with the token in `TIDEMILL_WEBHOOK_TOKEN`.
    Token,
    /// HMAC-SHA256 of the body with the secret in `TIDEMILL_WEBHOOK_SECRET`, in hexadecimal, as signed by GitHub.
    Signature,
}

/// How a post is checked.
#[derive(Clone)]
pub(super) enum SocketPayload {
    /// Accepts all posts.
    Nothing,
    /// The token's code under a random key: comparing codes reveals nothing about the token.
    Token(Key, hmac::Tag),
    Signature(HeaderName, Key),
}

impl SocketPayload {
    /// The check that `auth` requests; by default, the one for which the environment has a secret.
    ///
    /// # Errors
    /// A description, if the secret is missing or it is unclear which of two applies.
    pub(super) fn new(
        auth: Option<PayloadAuth>,
        header: &str,
        secrets: [Option<SecretText>; 2],
    ) -> Result<Self, String> {
        if secrets.iter().flatten().any(|secret| secret.reveal().is_empty()) {
            return Err(
                "TIDEMILL_WEBHOOK_TOKEN or TIDEMILL_WEBHOOK_SECRET is empty: unset it, or set it to a value".into()
            );
        }
        match (auth, secrets) {
            (None, [None, None]) => Ok(SocketPayload::Nothing),
            (None, [Some(_), Some(_)]) => {
                Err("both TIDEMILL_WEBHOOK_TOKEN and TIDEMILL_WEBHOOK_SECRET are set: choose with `auth` what posts \
                     carry"
                    .into())
            }
            (Some(PayloadAuth::Token) | None, [Some(token), _]) => {
                let key = Key::generate(HMAC_SHA256, &SystemRandom::new());
                let key = key.map_err(|_| "the system has no random numbers".to_owned())?;
                let tag = hmac::sign(&key, token.reveal().as_bytes());
                Ok(SocketPayload::Token(key, tag))
            }
            (Some(PayloadAuth::Signature) | None, [_, Some(secret)]) => {
                let header = HeaderName::try_from(header);
                let header = header.map_err(|_| "`signature_header` is not a valid header name".to_owned())?;
                Ok(SocketPayload::Signature(header, Key::new(HMAC_SHA256, secret.reveal().as_bytes())))
            }
            (Some(PayloadAuth::Token), _) => Err("`auth` is \"token\", but TIDEMILL_WEBHOOK_TOKEN is not set".into()),
            (Some(PayloadAuth::Signature), _) => {
                Err("`auth` is \"signature\", but TIDEMILL_WEBHOOK_SECRET is not set".into())
            }
        }
    }

    /// Whether the head of a post is acceptable: without the right token, its body is not read.
    pub(super) fn head(&self, headers: &HeaderMap) -> bool {
        let SocketPayload::Token(key, tag) = self else { return true };
        let given = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().split_at_checked("Bearer ".len()));
        given.is_some_and(|(scheme, token)| {
            scheme.eq_ignore_ascii_case(b"Bearer ") && hmac::verify(key, token.trim_ascii(), tag.as_ref()).is_ok()
        })
    }

    /// Whether the body was signed with the secret.
    pub(super) fn body(&self, headers: &HeaderMap, body: &[u8]) -> bool {
        let SocketPayload::Signature(header, key) = self else { return true };
        let given = headers.get(header).map(|value| value.as_bytes());
        let digits = given.map(|given| given.strip_prefix(b"sha256=").unwrap_or(given));
        digits.and_then(bytes).is_some_and(|signature| hmac::verify(key, body, &signature).is_ok())
    }
}

/// The bytes of hexadecimal digits.
fn bytes(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let (pairs, rest) = digits.as_chunks::<2>();
    let byte = |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok();
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())])
    }

    /// The test values in GitHub's documentation; near misses must not pass.
    #[test]
    fn signatures_are_those_of_github() {
        let secret = SecretText::new("It's a Secret to Everybody");
        let carried = SocketPayload::new(None, "X-Hub-Signature-256", [None, Some(secret)]).unwrap();
        let digits = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let passes = |value: &str, body: &[u8]| carried.body(&headers("x-hub-signature-256", value), body);
        assert!(passes(&format!("sha256={digits}"), b"Hello, World!") && passes(digits, b"Hello, World!"));
        assert!(!passes(&format!("sha256={digits}"), b"Hello, World"));
        for wrong in ["", "sha256=", &digits[..62], &digits[..63], &format!("sha1={digits}"), &format!("{digits}00")] {
            assert!(!passes(wrong, b"Hello, World!"), "{wrong}");
        }
        assert!(!carried.body(&HeaderMap::new(), b"Hello, World!"));
        assert!(carried.head(&HeaderMap::new()), "the body tells");
    }

    /// A token that is merely similar, or has another scheme, must not pass.
    #[test]
    fn tokens_are_whole() {
        let carried = SocketPayload::new(None, "", [Some(SecretText::new("swordfish")), None]).unwrap();
        let passes = |value: &str| carried.head(&headers("authorization", value));
        assert!(passes("Bearer swordfish") && passes("bearer swordfish"));
        for wrong in ["Bearer", "Bearer ", "Bearer swordfis", "Bearer swordfishs", "Basic swordfish", "swordfish"] {
            assert!(!passes(wrong), "{wrong}");
        }
        assert!(!carried.head(&HeaderMap::new()));
    }

    /// A server must not let everyone in because a variable is misspelled.
    #[test]
    fn secrets_that_are_missing_are_told() {
        let secret = || Some(SecretText::new("s"));
        let error = |auth, secrets| SocketPayload::new(auth, "x", secrets).err().unwrap_or_default();
        assert!(error(Some(PayloadAuth::Token), [None, secret()]).contains("TIDEMILL_WEBHOOK_TOKEN is not set"));
        assert!(error(Some(PayloadAuth::Signature), [secret(), None]).contains("TIDEMILL_WEBHOOK_SECRET is not set"));
        assert!(error(None, [secret(), secret()]).contains("choose with `auth` what"));
        assert!(error(None, [Some(SecretText::new("")), None]).contains("is empty"));
        assert!(SocketPayload::new(Some(PayloadAuth::Signature), "two words", [None, secret()]).is_err());
        assert!(matches!(SocketPayload::new(None, "x", [None, None]), Ok(SocketPayload::Nothing)));
    }
}
