//! Options of connections, which several connectors have.

use std::time::Duration;

use serde::Deserialize;

use crate::options::{self, SecretText};
use crate::tls::TlsOptions;

/// How long a server may be away, unless told.
const PATIENCE_S: f64 = 60.0;

/// A server that a URL names.
#[derive(Clone, Deserialize)]
pub(crate) struct ServerOptions {
    /// The scheme says whether the connection is encrypted. A password in it appears in no message.
    pub(crate) url: SecretText,
    /// Files of certificates, if it is.
    pub(crate) tls: Option<TlsOptions>,
    /// As of [`patience`].
    patience_s: Option<f64>,
}

impl ServerOptions {
    /// See [`patience`].
    pub(crate) fn patience(&self) -> Result<Duration, String> {
        patience(self.patience_s)
    }
}

/// How long a server may be away, or keep silent, before the job fails: `patience_s`, or a minute.
///
/// # Errors
/// In words, if it is negative or too long.
pub(crate) fn patience(given_s: Option<f64>) -> Result<Duration, String> {
    options::seconds("patience_s", given_s.unwrap_or(PATIENCE_S), 0.0)
}

/// A user of a server. What is not given comes from environment variables, whose names depend on the connector.
#[derive(Clone, Deserialize)]
pub(crate) struct Credentials {
    user: Option<String>,
    password: Option<SecretText>,
}

impl Credentials {
    /// The user's name and password; `user` and `password` are variables of the environment.
    pub(crate) fn or_environment(self, user: &str, password: &str) -> (Option<String>, Option<SecretText>) {
        (self.user.or_else(|| std::env::var(user).ok()), SecretText::or_environment(self.password, password))
    }
}
