//! What all clients are told, and what they have to say.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rdkafka::client::{Client, ClientContext};
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::DeliveryResult;
use rdkafka::producer::ProducerContext;
use serde_json::Value;
use tidemill_dataflow::TaskError;

use crate::options::Secret;
use crate::tls::Tls;

/// Between two lines that one client may print.
const QUIET: Duration = Duration::from_secs(5);

/// Where the brokers are, and who asks.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) servers: String,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
    /// What else librdkafka is to be told.
    pub(crate) config: BTreeMap<String, Value>,
    /// With TLS.
    tls: Option<Tls>,
}

impl Connection {
    /// User and password from the environment, where they are not given. With TLS if `tls` is given, or `config` says so.
    ///
    /// # Errors
    /// In words, naming a file of `tls` that is not what it should be.
    pub(crate) fn new(
        servers: String,
        (user, password): (Option<String>, Option<Secret>),
        tls: Option<&Tls>,
        config: BTreeMap<String, Value>,
    ) -> Result<Self, String> {
        let protocol = config.get("security.protocol").and_then(Value::as_str).unwrap_or_default().to_lowercase();
        if tls.is_some() && protocol.ends_with("plaintext") {
            return Err("`tls` and a `security.protocol` without it contradict each other".into());
        }
        let tls = match tls.is_some() || protocol.ends_with("ssl") {
            true => Some(Tls::or_environment(tls)?),
            false => None,
        };
        if tls.is_some() && !cfg!(feature = "kafka-tls") {
            return Err("this build of Tidemill has no TLS for Kafka: build it with the feature `kafka-tls`, which takes perl and some \
                        minutes more, or let a proxy beside the job speak it"
                .into());
        }
        tls.as_ref().map(Tls::files).transpose()?;
        let user = user.or_else(|| std::env::var("TIDEMILL_KAFKA_USER").ok());
        let password = Secret::or_environment(password, "TIDEMILL_KAFKA_PASSWORD");
        Ok(Connection { servers, user, password, config, tls })
    }

    /// What a client is told: what was given, and above it `ours`.
    pub(crate) fn config(&self, ours: &[(&str, &str)]) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set_log_level(RDKafkaLogLevel::Warning);
        // Back soon after a broker's restart.
        config.set("reconnect.backoff.max.ms", "1000");
        if let (Some(user), Some(password)) = (&self.user, &self.password) {
            config.set("security.protocol", "sasl_plaintext").set("sasl.mechanism", "PLAIN");
            config.set("sasl.username", user).set("sasl.password", password.reveal());
        }
        if let Some(tls) = &self.tls {
            config.set(
                "security.protocol",
                if self.user.is_some() && self.password.is_some() { "sasl_ssl" } else { "ssl" },
            );
            for (name, file) in tls.named() {
                config.set(name, file);
            }
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
}

/// Hears what a client has to say, and prints a line of it now and then.
pub(crate) struct Context {
    /// Task and copy.
    name: String,
    printed: Mutex<(Option<Instant>, u64)>,
    /// Why a broker and the client do not trust each other.
    distrust: Mutex<Option<String>>,
    /// The first record that could not be delivered.
    undelivered: Mutex<Option<RDKafkaErrorCode>>,
}

impl Context {
    pub(crate) fn new(name: &str) -> Self {
        Context {
            name: name.to_owned(),
            printed: Mutex::default(),
            distrust: Mutex::default(),
            undelivered: Mutex::default(),
        }
    }

    /// What is wrong with a broker's certificate, or with ours, and what to do about it.
    fn distrust(&self) -> Option<String> {
        self.distrust.lock().expect("nothing panics with it locked").clone()
    }

    /// What kept the first record from being delivered, since the last call.
    pub(crate) fn take_undelivered(&self) -> Option<RDKafkaErrorCode> {
        self.undelivered.lock().expect("nothing panics with it locked").take()
    }
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, _: &str, text: &str) {
        if level as i32 > RDKafkaLogLevel::Warning as i32 {
            return;
        }
        if text.contains("SSL handshake failed") && text.contains("certificate") {
            let text = format!(
                "{text}: the broker's certificate has to be signed by who is trusted (ca=, TIDEMILL_TLS_CA), for the name that it is \
                 asked for by, and not expired; one that wants to know who asks needs certificate= and key="
            );
            self.distrust.lock().expect("nothing panics with it locked").get_or_insert(text);
        }
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

    // It is logged too, or comes back from the call that it concerns.
    fn error(&self, _: KafkaError, _: &str) {}
}

impl ConsumerContext for Context {}

impl ProducerContext for Context {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((error, _)) = result {
            let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
            self.undelivered.lock().expect("nothing panics with it locked").get_or_insert(code);
        }
    }
}

/// An error of a client, without the value of an option, which may be a password.
pub(crate) fn plain(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, reason, name, _) => format!("config \"{name}\": {reason}"),
        other => other.to_string(),
    }
}

/// Whether it is no use to try again.
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
                | E::Authentication
                | E::InvalidTransactionTimeout
                | E::MessageSizeTooLarge
                | E::InvalidTopic
                | E::UnsupportedVersion
                | E::UnsupportedFeature
        )
    )
}

/// How many partitions a topic has. Waits as long as `patience` for a broker that answers.
///
/// # Errors
/// Naming the topic or the servers.
pub(crate) fn partitions(
    client: &Client<Context>,
    connection: &Connection,
    topic: &str,
    patience: Duration,
) -> Result<i32, TaskError> {
    let begun = Instant::now();
    loop {
        let left = patience.saturating_sub(begun.elapsed());
        let reason =
            match client.fetch_metadata(Some(topic), left.clamp(Duration::from_secs(1), Duration::from_secs(5))) {
                Ok(metadata) => {
                    let found = metadata.topics().iter().find(|found| found.name() == topic);
                    match found.map_or(0, |found| found.partitions().len()) {
                        // It may not have heard of it yet.
                        0 => format!("topic \"{topic}\" does not exist"),
                        partitions => return Ok(partitions as i32),
                    }
                }
                Err(error) if is_final(&error) => return Err(failed(topic, &error)),
                Err(error) => format!("no broker of {} answers: {}", connection.servers, plain(&error)),
            };
        if let Some(why) = client.context().distrust() {
            return Err(format!("kafka {}: {why}", connection.servers).into());
        }
        if begun.elapsed() >= patience || reason.ends_with("exist") && begun.elapsed() >= patience / 10 {
            return Err(format!("kafka: {reason}").into());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// An error about a topic.
pub(crate) fn failed(topic: &str, error: &KafkaError) -> TaskError {
    format!("kafka topic \"{topic}\": {}", plain(error)).into()
}
