//! Where a stream is read from, and whether what comes after that is still there.

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

/// Where a stream is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StreamPosition {
    /// Of the entry before.
    pub(super) id: String,
    /// How many had been added with it, if the server knows.
    pub(super) number: Option<u64>,
}

impl StreamPosition {
    /// Of a checkpoint; none, where the stream had not been looked at.
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

/// What a server knows of a stream.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamInfo {
    pub(super) last: String,
    /// How many entries were ever added, and how many of them are there.
    pub(super) added: Option<u64>,
    pub(super) length: u64,
}

impl StreamInfo {
    /// Of an answer to XINFO; of a stream that is not there nothing was added.
    ///
    /// # Errors
    /// The server's.
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

    /// Where a job begins.
    pub(super) fn start(&self, start: RedisStart) -> StreamPosition {
        match start {
            // A place that stays the same, never "the end".
            RedisStart::Latest => StreamPosition { id: self.last.clone(), number: self.added },
            RedisStart::Earliest => {
                StreamPosition { id: NOTHING.into(), number: self.added.map(|added| added - self.length) }
            }
        }
    }

    /// What is wrong with going on from a place.
    pub(super) fn lost(&self, stream: &str, place: &StreamPosition) -> Option<String> {
        let (added, number) = (self.added?, place.number?);
        // One that is not there: somebody may have deleted it when all of it was read.
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

    /// A place of an earlier version is one, too, and what it was is what is saved.
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
