//! Acknowledged data that a server may lose.

use std::collections::BTreeMap;

/// The settings that determine whether a server keeps its data.
pub(super) const SETTINGS: [&str; 3] = ["appendonly", "appendfsync", "maxmemory-policy"];

/// What a server's settings mean for rows that should be there exactly once.
pub(super) fn risks(settings: &BTreeMap<String, String>, expires: bool) -> Vec<String> {
    let mut risks = Vec::new();
    let unsaid: Vec<&str> = SETTINGS.into_iter().filter(|name| !settings.contains_key(*name)).collect();
    if !unsaid.is_empty() {
        risks.push(format!(
            "it does not say whether it keeps what is committed (CONFIG GET {}): make sure that it has appendonly \
             yes, appendfsync always and maxmemory-policy noeviction, or allow this user +config|get",
            unsaid.join(" ")
        ));
    }
    let is = |name: &str, value: &str| settings.get(name).is_some_and(|found| found == value);
    if is("appendonly", "no") {
        risks.push(
            "it does not write each change to disk (appendonly no): when it ends, rows committed since its last \
             snapshot are lost, or come again; appendonly yes and appendfsync always keep them"
                .to_owned(),
        );
    } else if let Some(often) = settings.get("appendfsync").filter(|often| *often != "always") {
        let lost = if often == "everysec" { "of the last second" } else { "since the system last wrote" };
        risks.push(format!(
            "it does not wait until a change is on disk (appendfsync {often}): when its machine fails, committed rows \
             {lost} are lost, or come again; appendfsync always keeps them"
        ));
    }
    if let Some(policy) = settings.get("maxmemory-policy") {
        if policy.starts_with("allkeys") {
            risks.push(format!(
                "it evicts keys when its memory is full (maxmemory-policy {policy}): committed rows may be lost, or \
                 come again; noeviction keeps them"
            ));
        } else if policy.starts_with("volatile") && expires {
            risks.push(format!(
                "it evicts expiring keys when its memory is full (maxmemory-policy {policy}), and these hashes \
                 expire: committed rows may be lost before their time; noeviction keeps them, or leave `expire` out"
            ));
        }
    }
    risks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that may lose acknowledged data must cause a warning, and so must one that does not tell.
    #[test]
    fn servers_that_forget_are_told_of() {
        let told = |settings: &[(&str, &str)], expires: bool| {
            let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            risks(&settings.collect(), expires).join(" ")
        };
        let of = |aof, often, policy, expires| {
            told(&[("appendonly", aof), ("appendfsync", often), ("maxmemory-policy", policy)], expires)
        };
        assert_eq!(of("yes", "always", "noeviction", true) + &of("yes", "always", "volatile-ttl", false), "");
        assert!(told(&[], false).contains("(CONFIG GET appendonly appendfsync maxmemory-policy)"));
        let both = of("no", "everysec", "allkeys-lru", false);
        assert!(both.contains("(appendonly no)") && both.contains("(maxmemory-policy allkeys-lru)"), "{both}");
        assert!(!both.contains("(appendfsync"), "{both}");
        assert!(of("yes", "everysec", "noeviction", false).contains("(appendfsync everysec)"));
        assert!(of("yes", "always", "volatile-lru", true).contains("(maxmemory-policy volatile-lru)"));
    }
}
