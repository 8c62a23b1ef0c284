//! Overlays: trees of workers along which one-to-many and many-to-one traffic runs. Their nodes are workers, never
//! copies: a worker is sent a batch once however many copies it runs.
//!
//! | overlay         | hosts in a row on H hosts | a worker sends at most | a host is sent a batch |
//! |-----------------|---------------------------|------------------------|------------------------|
//! | `Serial`        | 1                         | P - 1 times            | once for each worker   |
//! | `Flat`          | 1                         | H + w - 2 times        | once                   |
//! | `Binary`        | lg H                      | 2 times                | once                   |
//! | `Binomial`      | lg H                      | lg H + lg w times      | once                   |
//! | `Chain`         | H - 1                     | once                   | once                   |
//! | `Ring`          | H / 2                     | once, the root twice   | once                   |
//! | `Double`        | lg H + 1                  | once on average        | once                   |
//! | `Levels`        | as its shape between them | as both its shapes     | once                   |
//!
//! With P workers, w on each of H hosts. Reductions and gathers go up the same trees; of `Double`'s two, up one.
//!
//! Source: the overlays of Storm's broadcast (flat tree, binary tree, ring); the binomial tree is MPI's; two trees are
//! P. Sanders, J. Speck, J. L. Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.

mod choice;
mod keyed;
mod tree;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tidemill_collective::tuner::CostModel;

pub use choice::{MESSAGE_BYTES, OverlayChoice};
pub(crate) use keyed::KeyedTrees;
pub use tree::WorkerTree;

/// The shape of a tree over hosts, or over the workers of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// The first sends to all.
    Flat,
    /// Everybody passes on to two.
    Binary,
    /// The first halves its work in every round.
    Binomial,
    /// Everybody passes on to the next.
    Chain,
}

/// A way from one worker to many, or back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Overlay {
    /// The root sends to every worker by itself, wherever it is: what all others are compared with.
    Serial,
    /// The root sends to one worker of each host, which sends to all others there.
    Flat,
    /// A worker sends to two at most: where there are such, to one of its own host and to one of a host that nobody
    /// else sends to. The first two workers of a host send out of it.
    Binary,
    /// The root halves its work in every round: first between hosts, then in each.
    #[default]
    Binomial,
    /// A line through all workers, host by host, beginning with the root's. Successive messages follow each other.
    Chain,
    /// Two such lines from the root, each through half of the hosts.
    Ring,
    /// Two binary trees over all workers, which messages take in turn. Who passes on in one is a leaf of the other,
    /// mostly, so that no link carries a message twice.
    Double,
    /// One shape over a worker of each host, another over the workers of each host.
    Levels {
        /// Between hosts.
        hosts: Shape,
        /// Within each.
        workers: Shape,
    },
}

/// Where workers are, and what messages between them cost.
#[derive(Clone, Debug)]
pub struct WorkerNetwork {
    /// The host of every worker.
    pub hosts: Vec<u32>,
    /// As measured by `tidemill tune`, or typical.
    pub model: CostModel,
}

/// A name that no overlay has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "use \"serial\", \"flat\", \"binary\", \"binomial\", \"chain\", \"ring\" or \"double\", or a shape between hosts and one \
     within them, such as \"flat/binary\""
)]
#[non_exhaustive]
pub struct UnknownOverlay;

impl FromStr for Shape {
    type Err = UnknownOverlay;

    fn from_str(name: &str) -> Result<Self, UnknownOverlay> {
        Ok(match name {
            "flat" => Shape::Flat,
            "binary" => Shape::Binary,
            "binomial" => Shape::Binomial,
            "chain" => Shape::Chain,
            _ => return Err(UnknownOverlay),
        })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Shape::Flat => "flat",
            Shape::Binary => "binary",
            Shape::Binomial => "binomial",
            Shape::Chain => "chain",
        })
    }
}

impl FromStr for Overlay {
    type Err = UnknownOverlay;

    fn from_str(name: &str) -> Result<Self, UnknownOverlay> {
        if let Some((hosts, workers)) = name.split_once('/') {
            return Ok(Overlay::Levels { hosts: hosts.parse()?, workers: workers.parse()? });
        }
        Ok(match name {
            "serial" => Overlay::Serial,
            "flat" => Overlay::Flat,
            "binary" => Overlay::Binary,
            "binomial" => Overlay::Binomial,
            "chain" => Overlay::Chain,
            "ring" => Overlay::Ring,
            "double" => Overlay::Double,
            _ => return Err(UnknownOverlay),
        })
    }
}

impl fmt::Display for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Overlay::Serial => "serial",
            Overlay::Flat => "flat",
            Overlay::Binary => "binary",
            Overlay::Binomial => "binomial",
            Overlay::Chain => "chain",
            Overlay::Ring => "ring",
            Overlay::Double => "double",
            Overlay::Levels { hosts, workers } => return write!(f, "{hosts}/{workers}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that is printed, but not read back, cannot be set by who reads it.
    #[test]
    fn names_are_read_as_they_are_written() {
        let levels = Overlay::Levels { hosts: Shape::Flat, workers: Shape::Binary };
        let own = [Overlay::Serial, Overlay::Flat, Overlay::Binary, Overlay::Binomial, Overlay::Chain, Overlay::Ring];
        for overlay in own.into_iter().chain([Overlay::Double, levels]) {
            assert_eq!(overlay.to_string().parse(), Ok(overlay));
        }
        for wrong in ["", "star", "flat/", "flat/ring", "flat/flat/flat"] {
            assert_eq!(wrong.parse::<Overlay>(), Err(UnknownOverlay), "{wrong}");
        }
    }
}
