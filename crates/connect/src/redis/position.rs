//! The position in a stream, and whether the entries after it still exist.

use std::collections::BTreeMap;
use std::fmt;

use redis::RedisResult;
use serde::Deserialize;

/// Before all entries.
const NOTHING: &str = "0-0";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RedisStart {
    #[default]
    Earliest,
    Latest,
}

/// The position in a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamPosition {
    /// The id of the entry before.
    pub(super) id: String,
    /// How many entries had been added including that one, if the server counts.
    pub(super) number: Option<u64>,
}

impl StreamPosition {
    /// Parses a position in a checkpoint; `None` if the stream had not been checked yet.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (id, number) = text.split_once(' ').map_or((text, None), |(id, number)| (id, number.parse().ok()));
        (!id.is_empty()).then(|| StreamPosition { id: id.to_owned(), number })
    }
}

impl fmt::Display for StreamPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)?;
        self.number.map_or(Ok(()), |number| write!(f, " {number}"))
    }
}

/// The server's information about a stream.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamInfo {
    pub(super) last: String,
    /// How many entries were ever added, and how many of them still exist.
    pub(super) added: Option<u64>,
    pub(super) length: u64,
}

impl StreamInfo {
    /// Decodes a reply to XINFO; nothing was added to a stream that does not exist.
    ///
    /// # Errors
    /// Those of the server.
    pub(super) fn of(answer: RedisResult<BTreeMap<String, redis::Value>>) -> RedisResult<Self> {
        let found = match answer {
            Err(error) if error.detail().is_some_and(|detail| detail.contains("no such key")) => {
                return Ok(StreamInfo { last: NOTHING.into(), added: Some(0), length: 0 });
            }
            answer => answer?,
        };
        let number = |name: &str| found.get(name).and_then(|value| redis::from_redis_value(value.clone()).ok());
        let last = found.get("last-generated-id").and_then(|id| redis::from_redis_value(id.clone()).ok());
        Ok(StreamInfo {
            last: last.unwrap_or_else(|| NOTHING.into()),
            added: number("entries-added"),
            length: number("length").unwrap_or(0),
        })
    }

    /// Where a job starts.
    pub(super) fn start(&self, start: RedisStart) -> StreamPosition {
        match start {
            // A fixed position, never "the end".
            RedisStart::Latest => StreamPosition { id: self.last.clone(), number: self.added },
            RedisStart::Earliest => {
                StreamPosition { id: NOTHING.into(), number: self.added.map(|added| added - self.length) }
            }
        }
    }

    /// The problem with resuming from a position, if any.
    pub(super) fn lost(&self, stream: &str, place: &StreamPosition) -> Option<String> {
        let (added, number) = (self.added?, place.number?);
        // A stream that does not exist: it may have been deleted after everything was read.
        let removed = added.saturating_sub(self.length);
        let what = match (added < number && added > 0, removed > number) {
            (true, _) => format!("it was recreated since entry {} was read", place.id),
            (false, true) => {
                let unread = removed - number;
                format!("{unread} entries after {} that were not read yet no longer exist", place.id)
            }
            (false, false) => return None,
        };
        Some(format!(
            "redis stream \"{stream}\": {what}: keep entries for longer than the job may be down (MAXLEN, MINID), or \
             start without the checkpoint"
        ))
    }
}

pub(super) fn info(stream: &str) -> redis::Cmd {
    let mut command = redis::cmd("XINFO");
    command.arg("STREAM").arg(stream);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Positions of earlier versions are valid, too, and the saved form must not change.
    #[test]
    fn places_are_texts() {
        let place = |number| Some(StreamPosition { id: "7-1".into(), number });
        assert_eq!(
            [StreamPosition::parse("7-1 12"), StreamPosition::parse("7-1"), StreamPosition::parse("")],
            [place(Some(12)), place(None), None]
        );
        assert_eq!(place(Some(12)).unwrap().to_string(), "7-1 12");
        assert_eq!(place(None).unwrap().to_string(), "7-1");
    }
}
