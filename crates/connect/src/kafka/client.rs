//! Configuration of all clients, and the handling of their messages.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::ProducerContext;
use serde::Deserialize;
use serde_json::Value;
use tidemill_dataflow::TaskError;

use super::registry::SchemaRegistry;
use crate::connection::Credentials;
use crate::options::SecretText;
use crate::tls::TlsOptions;

/// Minimum time between two lines that a client prints.
const QUIET: Duration = Duration::from_secs(5);

/// How a client authenticates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum SaslMechanism {
    #[serde(rename = "PLAIN")]
    Plain,
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

/// A SASL user.
#[derive(Clone)]
struct SaslUser {
    name: String,
    password: SecretText,
    mechanism: SaslMechanism,
}

/// The brokers, and the user.
#[derive(Clone)]
pub(crate) struct KafkaConnection {
    pub(crate) servers: String,
    user: Option<SaslUser>,
    /// Further options for librdkafka.
    pub(crate) config: BTreeMap<String, Value>,
    /// TLS options, if TLS is used.
    tls: Option<TlsOptions>,
}

/// A topic, with the connection to its brokers and its registry.
#[derive(Clone, Deserialize)]
pub(crate) struct TopicOptions {
    /// `host:port`, several separated by commas.
    servers: String,
    pub(crate) topic: String,
    /// The schema registry of the topic's values.
    registry: Option<SecretText>,
    /// The authentication mechanism; PLAIN by default.
    sasl: Option<SaslMechanism>,
    /// Certificate files, with TLS.
    tls: Option<TlsOptions>,
    /// Further options for librdkafka.
    #[serde(default)]
    config: BTreeMap<String, Value>,
    /// How long the brokers may be silent; sources and sinks have different defaults.
    pub(crate) patience_s: Option<f64>,
}

impl TopicOptions {
    /// The client of the registry, if there is one.
    ///
    /// # Errors
    /// A description, if its URL is invalid or a file of `tls` cannot be used.
    pub(crate) fn registry(&self, patience: Duration) -> Result<Option<SchemaRegistry>, String> {
        self.registry.as_ref().map(|url| SchemaRegistry::new(url, self.tls.as_ref(), patience)).transpose()
    }
}

impl KafkaConnection {
    /// User and password default to `TIDEMILL_KAFKA_USER` and `TIDEMILL_KAFKA_PASSWORD`. Uses TLS if `tls` is given or
    /// `config` says so.
    ///
    /// # Errors
    /// A description that names the unusable file of `tls`, or the missing part of the user.
    pub(crate) fn new(options: &TopicOptions, credentials: Credentials) -> Result<Self, String> {
        let TopicOptions { servers, sasl: mechanism, tls, config, .. } = options.clone();
        let protocol = config.get("security.protocol").and_then(Value::as_str).unwrap_or_default().to_lowercase();
        if tls.is_some() && protocol.ends_with("plaintext") {
            return Err("`tls` contradicts a `security.protocol` without TLS".into());
        }
        let tls = match tls.is_some() || protocol.ends_with("ssl") {
            true => Some(TlsOptions::or_environment(tls.as_ref())?),
            false => None,
        };
        tls.as_ref().map(TlsOptions::files).transpose()?;
        let user = match credentials.or_environment("TIDEMILL_KAFKA_USER", "TIDEMILL_KAFKA_PASSWORD") {
            (Some(name), Some(password)) => {
                Some(SaslUser { name, password, mechanism: mechanism.unwrap_or(SaslMechanism::Plain) })
            }
            (None, None) if mechanism.is_none() => None,
            _ => {
                return Err(
                    "TIDEMILL_KAFKA_USER and TIDEMILL_KAFKA_PASSWORD need each other, and `sasl` needs both".into()
                );
            }
        };
        Ok(KafkaConnection { servers, user, config, tls })
    }

    /// The configuration of a client: the given options, overridden by `ours`.
    pub(crate) fn config(&self, ours: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set_log_level(RDKafkaLogLevel::Warning);
        // Reconnects soon after a broker's restart.
        config.set("reconnect.backoff.max.ms", "1000");
        let protocol = match (&self.user, &self.tls) {
            (None, None) => "plaintext",
            (None, Some(_)) => "ssl",
            (Some(_), None) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        if let Some(SaslUser { name, password, mechanism }) = &self.user {
            let mechanism = match mechanism {
                SaslMechanism::Plain => "PLAIN",
                SaslMechanism::ScramSha256 => "SCRAM-SHA-256",
                SaslMechanism::ScramSha512 => "SCRAM-SHA-512",
            };
            config.set("sasl.mechanism", mechanism).set("sasl.username", name).set("sasl.password", password.reveal());
        }
        for (name, file) in self.tls.iter().flat_map(TlsOptions::named) {
            config.set(name, file);
        }
        for (name, value) in &self.config {
            match value {
                Value::String(text) => config.set(name, text),
                other => config.set(name, other.to_string()),
            };
        }
        config.set("bootstrap.servers", &self.servers).set("client.id", "tidemill");
        for (name, value) in ours {
            config.set(*name, *value);
        }
        config
    }

    /// The configuration of a producer. Unless configured otherwise, it maps keys to partitions like Kafka's own
    /// clients.
    pub(crate) fn producer_config(&self, ours: &[(&str, &str)]) -> ClientConfig {
        let mut config = self.config(ours);
        if config.get("partitioner").is_none() {
            config.set("partitioner", "murmur2_random");
        }
        config
    }

    /// The context for a client of this connection.
    pub(crate) fn context(&self, name: &str) -> KafkaContext {
        KafkaContext {
            name: name.to_owned(),
            says_who: self.tls.as_ref().is_some_and(TlsOptions::says_who),
            is_beside_a_producer: false,
            printed: Mutex::default(),
            distrust: Mutex::default(),
            heard: Mutex::default(),
            undelivered: Mutex::default(),
        }
    }
}

/// Receives a client's messages, and prints one of them now and then.
pub(crate) struct KafkaContext {
    /// Task and copy.
    name: String,
    /// Whether the client has its own certificate.
    says_who: bool,
    /// Whether to ignore messages about options that only producers have.
    is_beside_a_producer: bool,
    printed: Mutex<(Option<Instant>, u64)>,
    /// Why a broker and the client do not trust each other.
    distrust: Mutex<Option<String>>,
    /// The last message.
    heard: Mutex<String>,
    /// The first record that could not be delivered.
    undelivered: Mutex<Option<RDKafkaErrorCode>>,
}

impl KafkaContext {
    /// For a consumer that gets the same configuration as a producer, including options it does not have.
    pub(crate) fn beside_a_producer(self) -> Self {
        KafkaContext { is_beside_a_producer: true, ..self }
    }

    /// The problem with a certificate or password, and the remedy.
    pub(crate) fn distrust(&self) -> Option<String> {
        self.distrust.lock().expect("nothing panics with it locked").clone()
    }

    /// Why the first record since the last call could not be delivered.
    pub(crate) fn take_undelivered(&self) -> Option<RDKafkaErrorCode> {
        self.undelivered.lock().expect("nothing panics with it locked").take()
    }
}

impl ClientContext for KafkaContext {
    fn log(&self, level: RDKafkaLogLevel, _: &str, text: &str) {
        if level as i32 > RDKafkaLogLevel::Warning as i32 {
            return;
        }
        if self.is_beside_a_producer && text.contains("is a producer property") {
            return;
        }
        if let Some(remedy) = remedy(text, self.says_who) {
            let mut distrust = self.distrust.lock().expect("nothing panics with it locked");
            distrust.get_or_insert_with(|| format!("{text}: {remedy}"));
        }
        text.clone_into(&mut self.heard.lock().expect("nothing panics with it locked"));
        let mut printed = self.printed.lock().expect("nothing panics with it locked");
        if printed.0.is_some_and(|at| at.elapsed() < QUIET) {
            printed.1 += 1;
            return;
        }
        let more = match std::mem::take(&mut printed.1) {
            0 => String::new(),
            more => format!(" (and {more} lines before it)"),
        };
        printed.0 = Some(Instant::now());
        eprintln!("tidemill: kafka, {}: {text}{more}", self.name);
    }

    // The error is also logged, or returned by the call that it concerns.
    fn error(&self, _: KafkaError, _: &str) {}
}

impl ConsumerContext for KafkaContext {}

impl ProducerContext for KafkaContext {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result {
            let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
            self.undelivered.lock().expect("nothing panics with it locked").get_or_insert(code);
        }
    }
}

/// The remedy for a client's message, if the problem does not go away by itself; `says_who` if the client has a
/// certificate.
fn remedy(text: &str, says_who: bool) -> Option<&'static str> {
    const WHO: &str = "the broker requires a client certificate: set certificate= and key=, or \
                       TIDEMILL_TLS_CERTIFICATE and TIDEMILL_TLS_KEY";
    const REMEDIES: [(&str, &str); 4] = [
        (
            "certificate verify failed",
            "the broker's certificate must be signed by a trusted authority (ca=, TIDEMILL_TLS_CA), match the host \
             name you connect to, and not be expired",
        ),
        ("mechanism handshake failed", "set sasl= to a mechanism that the brokers support"),
        (
            "SASL authentication error",
            "the brokers do not know this user, or the password is wrong: see TIDEMILL_KAFKA_USER, \
             TIDEMILL_KAFKA_PASSWORD and sasl=",
        ),
        (
            "alert handshake failure",
            "the broker cannot agree on TLS parameters; a broker that requires client certificates needs certificate= \
             and key=",
        ),
    ];
    // Problems that our side merely did not find out about, such as a connection that broke midway, say nothing about
    // the other side.
    if !(text.contains("SSL") || text.contains("SASL")) || text.contains("Local: ") {
        return None;
    }
    // If the client has no certificate, some brokers say that one is required, others that it is bad.
    if ["alert certificate", "alert bad certificate", "alert unknown ca"].iter().any(|words| text.contains(words)) {
        return Some(if says_who {
            "the broker does not accept our certificate: see certificate= and key=, TIDEMILL_TLS_CERTIFICATE and \
             TIDEMILL_TLS_KEY"
        } else {
            WHO
        });
    }
    REMEDIES.iter().find(|(words, _)| text.contains(words)).map(|(_, remedy)| *remedy)
}

/// An error of a client without the values of options, which may be passwords.
pub(crate) fn plain(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, reason, name, _) => format!("config \"{name}\": {reason}"),
        other => other.to_string(),
    }
}

/// Whether trying again cannot help.
pub(crate) fn is_final(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as E;
    if matches!(error, KafkaError::ClientConfig(..) | KafkaError::ClientCreation(_) | KafkaError::Nul(_)) {
        return true;
    }
    matches!(
        error.rdkafka_error_code(),
        Some(
            E::TopicAuthorizationFailed
                | E::GroupAuthorizationFailed
                | E::ClusterAuthorizationFailed
                | E::TransactionalIdAuthorizationFailed
                | E::SaslAuthenticationFailed
                | E::InvalidTransactionTimeout
                | E::MessageSizeTooLarge
                | E::InvalidTopic
                | E::UnsupportedVersion
                | E::UnsupportedFeature
        )
    )
}

/// The number of partitions of a topic. Waits up to `patience` for a broker to answer. Meanwhile it calls `serve`,
/// which lets the client deliver its messages: they are the only way to learn why no broker answers.
///
/// # Errors
/// An error that names the topic or the servers.
pub(crate) fn partitions(
    client: &Client<KafkaContext>,
    connection: &KafkaConnection,
    topic: &str,
    patience: Duration,
    serve: impl Fn(Duration),
) -> Result<i32, TaskError> {
    let begun = Instant::now();
    loop {
        let left = patience.saturating_sub(begun.elapsed());
        let reason =
            match client.fetch_metadata(Some(topic), left.clamp(Duration::from_secs(1), Duration::from_secs(5))) {
                Ok(metadata) => {
                    let found = metadata.topics().iter().find(|found| found.name() == topic);
                    match found.map_or(0, |found| found.partitions().len()) {
                        // The broker may not know about the topic yet.
                        0 => format!("topic \"{topic}\" does not exist"),
                        partitions => return Ok(partitions as i32),
                    }
                }
                Err(error) if is_final(&error) => return Err(failed(topic, &error)),
                Err(error) => format!("no broker of {} answers: {}", connection.servers, plain(&error)),
            };
        serve(Duration::from_millis(200));
        if let Some(why) = client.context().distrust() {
            return Err(format!("kafka {}: {why}", connection.servers).into());
        }
        let is_missing = reason.ends_with("exist");
        if begun.elapsed() >= patience || is_missing && begun.elapsed() >= patience / 10 {
            let heard = client.context().heard.lock().expect("nothing panics with it locked").clone();
            let heard = if is_missing || heard.is_empty() { String::new() } else { format!(" ({heard})") };
            return Err(format!("kafka: {reason}{heard}").into());
        }
    }
}

/// An error about a topic.
pub(crate) fn failed(topic: &str, error: &KafkaError) -> TaskError {
    format!("kafka topic \"{topic}\": {}", plain(error)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A restarting broker must be waited for, and a rejected client must be told why.
    #[test]
    fn only_what_stays_has_remedies() {
        for text in [
            "localhost:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused",
            "ssl://localhost:1/bootstrap: SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?",
            "sasl_ssl://localhost:1/1: Disconnected: verify that security.protocol is correctly configured",
            "ssl://localhost:1/1: SSL handshake failed: error:0A000438:SSL routines::tlsv1 alert internal error",
            "SASL PLAIN mechanism handshake failed: Local: Broker transport failure: broker's supported mechanisms: (n/a)",
            "SASL authentication error: SaslAuthenticateRequest failed: Local: Timed out",
        ] {
            assert_eq!(remedy(text, false), None, "{text}");
        }
        let required = "Receive failed: error:0A00045C:SSL routines::tlsv13 alert certificate required";
        let bad = "Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate";
        for text in [required, bad] {
            assert!(remedy(text, false).unwrap().contains("set certificate= and key="), "{text}");
            assert!(remedy(text, true).unwrap().contains("our certificate"), "{text}");
        }
        for (text, words) in [
            ("SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker", "TIDEMILL_TLS_CA"),
            ("SSL handshake failed: error:0A000416:SSL routines::ssl/tls alert certificate unknown", "our certificate"),
            ("SSL handshake failed: error:0A000418:SSL routines::tlsv1 alert unknown ca", "our certificate"),
            ("SASL authentication error: Authentication failed: Invalid username", "TIDEMILL_KAFKA_PASSWORD"),
            ("SASL SCRAM-SHA-512 mechanism handshake failed: Broker: Unsupported SASL mechanism", "sasl="),
        ] {
            assert!(remedy(text, true).unwrap().contains(words), "{text}");
        }
    }
}
