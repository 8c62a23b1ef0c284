//! A description of a job's guarantees for its rows.

use tidemill_dataflow::stream::sink::DeliveryGuarantee;

use crate::plan::lower::{LoweredJob, SinkTask};

/// The guarantee of several steps in combination; `None` if one may lose rows and another may repeat them.
fn together(mut all: impl Iterator<Item = DeliveryGuarantee> + Clone) -> Option<DeliveryGuarantee> {
    let doubles = all.clone().any(|gives| gives == DeliveryGuarantee::AtLeastOnce);
    let loses = all.any(|gives| gives == DeliveryGuarantee::AtMostOnce);
    match (loses, doubles) {
        (false, false) => Some(DeliveryGuarantee::ExactlyOnce),
        (false, true) => Some(DeliveryGuarantee::AtLeastOnce),
        (true, false) => Some(DeliveryGuarantee::AtMostOnce),
        (true, true) => None,
    }
}

/// Describes what happens to a job's rows when it fails and resumes. `known` says for which queries the sink is known;
/// sinks beyond those of queries are known.
pub(crate) fn promises(lowered: &LoweredJob, known: &[bool]) -> String {
    let mut text = String::new();
    for source in lowered.sources.iter().filter(|source| source.lacks_event_time()) {
        let why = "it has no time=, so windows, ttl= and whatever else waits for event time wait for its end";
        text.push_str(&format!("{}: {why}\n", source.name()));
    }
    for task in &lowered.shared {
        text.push_str(&format!("{task}: runs once, and several queries use its rows\n"));
    }
    text.push_str("after a failure, with checkpoint=:\n");
    for source in &lowered.sources {
        let becomes = match source.guarantee() {
            DeliveryGuarantee::ExactlyOnce => "is read again from the position in the checkpoint",
            DeliveryGuarantee::AtLeastOnce => "sends again what may not have been received, so some rows may repeat",
            DeliveryGuarantee::AtMostOnce => "what came since the checkpoint is lost",
        };
        text.push_str(&format!("  {}: {becomes}\n", source.name()));
    }
    for (task, known) in lowered.sinks.iter().zip(known.iter().chain(std::iter::repeat(&true))) {
        let with = |sink: DeliveryGuarantee| has(lowered, task, sink);
        text.push_str(&match known {
            true => format!("  the sink {} {}\n", task.sink.name, with(task.sink.guarantee)),
            false => {
                let (commits, function) = (with(DeliveryGuarantee::ExactlyOnce), with(DeliveryGuarantee::AtLeastOnce));
                format!("  a sink that commits {commits}, a function {function}\n")
            }
        });
    }
    text.push_str("the same, with guarantee=\"at_most_once\":\n");
    for source in &lowered.sources {
        let becomes = match source.guarantee() {
            DeliveryGuarantee::ExactlyOnce => {
                "is read from where the checkpoint says; what was read before is not read again"
            }
            DeliveryGuarantee::AtLeastOnce => "rows that it sends again are dropped",
            DeliveryGuarantee::AtMostOnce => "what came before is lost",
        };
        text.push_str(&format!("  {}: {becomes}\n", source.name()));
    }
    text.push_str("  any sink has each row at most once; the state of windows and other steps is lost\n");
    text
}

/// How often a sink with this guarantee gets each row of its sources.
fn has(lowered: &LoweredJob, task: &SinkTask, sink: DeliveryGuarantee) -> String {
    let sources = task.sources.iter().map(|&source| lowered.sources[source].guarantee());
    match together(sources.chain([sink])) {
        Some(gives) => format!("has each row {gives}"),
        None => "may miss some rows, and get others more than once".into(),
    }
}
