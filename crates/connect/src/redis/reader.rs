//! Asks the server for entries, over a persistent connection.

use std::time::Instant;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tidemill_dataflow::TaskError;

use super::client::RedisServer;
use super::position::{RedisStart, StreamInfo, StreamPosition, info};

/// Entries per request and stream.
const COUNT: usize = 1000;

/// How long the server waits for an entry.
const BLOCK_MS: usize = 100;

/// An id, and the fields with their values.
pub(super) type Entry = (String, Vec<(Vec<u8>, Vec<u8>)>);

type Entries = Vec<(String, Vec<Entry>)>;

/// The starts of streams without a position, and entries by stream.
type Read = (Vec<(String, StreamPosition)>, Entries);

/// The starts of streams, and the entries found after them.
pub(super) struct StreamBounds {
    pub(super) reader: RedisReader,
    pub(super) first: Vec<(String, StreamPosition)>,
    pub(super) entries: Entries,
}

/// Asks the server, over a persistent connection.
pub(super) struct RedisReader {
    server: RedisServer,
    connection: Option<MultiplexedConnection>,
    start: RedisStart,
    stop_at_end: bool,
}

impl RedisReader {
    pub(super) fn new(server: RedisServer, start: RedisStart, stop_at_end: bool) -> Self {
        RedisReader { server, connection: None, start, stop_at_end }
    }

    pub(super) async fn read(
        mut self,
        streams: Vec<(String, Option<StreamPosition>)>,
    ) -> Result<StreamBounds, TaskError> {
        let begun = Instant::now();
        loop {
            match self.attempt(&streams).await {
                Ok(Ok((first, entries))) => return Ok(StreamBounds { reader: self, first, entries }),
                Ok(Err(lost)) => return Err(lost.into()),
                Err(error) => {
                    self.connection = None;
                    self.server.wait(begun, &error).await?;
                }
            }
        }
    }

    /// Entries, and the starts of streams without a position; the inner error describes lost entries.
    async fn attempt(&mut self, streams: &[(String, Option<StreamPosition>)]) -> RedisResult<Result<Read, String>> {
        let connection = self.server.connected(&mut self.connection).await?;
        let mut places: Vec<(&String, StreamPosition)> = Vec::new();
        let mut first = Vec::new();
        for (name, place) in streams {
            let place = match place {
                Some(place) => place.clone(),
                None => {
                    let info = StreamInfo::of(info(name).query_async(connection).await)?;
                    first.push((name.clone(), info.start(self.start)));
                    info.start(self.start)
                }
            };
            places.push((name, place));
        }
        let read = |block: bool| {
            let mut command = redis::cmd("XREAD");
            command.arg("COUNT").arg(COUNT);
            if block {
                command.arg("BLOCK").arg(BLOCK_MS);
            }
            command.arg("STREAMS");
            for (name, _) in &places {
                command.arg(name);
            }
            for (_, place) in &places {
                command.arg(&place.id);
            }
            command
        };
        // In one transaction: otherwise, entries removed between the check and the read would go unnoticed.
        let mut together = redis::pipe();
        together.atomic().ignore_errors();
        for (name, _) in &places {
            together.add_command(info(name));
        }
        together.add_command(read(false));
        let mut answers: Vec<RedisResult<redis::Value>> = together.query_async(connection).await?;
        let entries = answers.pop().expect("as many answers as commands")?;
        let mut entries: Option<Entries> = redis::from_redis_value(entries)?;
        for ((name, place), answer) in places.iter().zip(answers) {
            let info = StreamInfo::of(answer.and_then(|answer| Ok(redis::from_redis_value(answer)?)))?;
            if let Some(lost) = info.lost(name, place) {
                return Ok(Err(lost));
            }
        }
        if entries.is_none() && !self.stop_at_end {
            entries = read(true).query_async(connection).await?;
        }
        Ok(Ok((first, entries.unwrap_or_default())))
    }
}
