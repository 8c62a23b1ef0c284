//! Reads variables and names them in error messages.

use std::os::fd::RawFd;
use std::str::FromStr;
use std::time::Duration;

use super::{EnvironmentError, MeetingPoint, Variables};
use crate::secret::JobSecret;

/// The variables of a process. An empty one counts as unset: launchers and shells often clear variables this way.
pub(super) struct VariableReader<'a>(pub(super) &'a Variables);

impl<'a> VariableReader<'a> {
    /// The value, if it is set and not empty.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    pub(super) fn parse<T: FromStr>(&self, name: &str, expected: &'static str) -> Result<Option<T>, EnvironmentError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        let malformed = |_| EnvironmentError::Malformed { name: name.into(), value: value.into(), expected };
        value.parse().map(Some).map_err(malformed)
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<u32>, EnvironmentError> {
        self.parse(name, "a non-negative integer")
    }

    pub(super) fn seconds(&self, name: &str, default: Duration) -> Result<Duration, EnvironmentError> {
        let expected = "a positive number of seconds";
        let Some(seconds) = self.parse::<f64>(name, expected)? else { return Ok(default) };
        let valid = Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero());
        let value = || seconds.to_string();
        valid.ok_or_else(|| EnvironmentError::Malformed { name: name.into(), value: value(), expected })
    }

    /// A rank and a size that must come together.
    pub(super) fn pair(&self, rank: &str, size: &str, remedy: &str) -> Result<Option<(u32, u32)>, EnvironmentError> {
        let missing = |present: &str, missing: &str| {
            Err(EnvironmentError::Missing { present: present.into(), missing: missing.into(), remedy: remedy.into() })
        };
        match (self.number(rank)?, self.number(size)?) {
            (Some(rank), Some(size)) => Ok(Some((rank, size))),
            (None, None) => Ok(None),
            (Some(_), None) => missing(rank, size),
            (None, Some(_)) => missing(size, rank),
        }
    }

    pub(super) fn secret(&self) -> Result<Option<JobSecret>, EnvironmentError> {
        let Some(text) = self.text("TIDEMILL_SECRET") else { return Ok(None) };
        JobSecret::from_hex(text).map(Some).ok_or_else(|| EnvironmentError::Malformed {
            name: "TIDEMILL_SECRET".into(),
            value: "(not shown)".into(),
            expected: "64 hexadecimal digits",
        })
    }

    /// The meeting point that the user gave, for launchers that offer none or no better one.
    pub(super) fn given(&self) -> Result<Option<MeetingPoint>, EnvironmentError> {
        let (Some(root), Some(secret)) = (self.text("TIDEMILL_ROOT"), self.secret()?) else { return Ok(None) };
        Ok(Some(MeetingPoint::Given { root: root.into(), secret, listen_fd: None }))
    }

    /// A descriptor of this process that leads to the launcher's PMI-1 server.
    pub(super) fn pmi_fd(&self) -> Result<Option<RawFd>, EnvironmentError> {
        self.parse("PMI_FD", "a file descriptor")
    }
}
