//! Connection options that several connectors share.

use std::time::Duration;

use serde::Deserialize;

use crate::options::{self, SecretText};
use crate::tls::TlsOptions;

/// Default time that a server may be unreachable.
const PATIENCE_S: f64 = 60.0;

/// A server given by a URL.
#[derive(Clone, Deserialize)]
pub(crate) struct ServerOptions {
    /// The scheme determines whether the connection is encrypted. A password in the URL never appears in messages.
    pub(crate) url: SecretText,
    /// Certificate files, for an encrypted connection.
    pub(crate) tls: Option<TlsOptions>,
    /// See [`patience`].
    patience_s: Option<f64>,
}

impl ServerOptions {
    /// See [`patience`].
    pub(crate) fn patience(&self) -> Result<Duration, String> {
        patience(self.patience_s)
    }
}

/// How long a server may be unreachable or silent before the job fails: `patience_s`, or a minute by default.
///
/// # Errors
/// A description, if it is negative or too long.
pub(crate) fn patience(given_s: Option<f64>) -> Result<Duration, String> {
    options::seconds("patience_s", given_s.unwrap_or(PATIENCE_S), 0.0)
}

/// A user of a server. Missing parts come from environment variables, whose names depend on the connector.
#[derive(Clone, Deserialize)]
pub(crate) struct Credentials {
    user: Option<String>,
    password: Option<SecretText>,
}

impl Credentials {
    /// The user's name and password; `user` and `password` name environment variables.
    pub(crate) fn or_environment(self, user: &str, password: &str) -> (Option<String>, Option<SecretText>) {
        (self.user.or_else(|| std::env::var(user).ok()), SecretText::or_environment(self.password, password))
    }
}
