//! A schema registry with Confluent's REST API, which Karapace, Apicurio and Redpanda also implement.
//!
//! | request                           | purpose                                                                 |
//! |-----------------------------------|-------------------------------------------------------------------------|
//! | `GET /schemas/ids/ID`             | a record's writer schema, which never changes, so it is cached          |
//! | `GET /subjects/S/versions/latest` | the default schema for reading records                                  |
//! | `POST /subjects/S/versions`       | the number of the schema with which records are written; idempotent     |
//!
//! The subject of a topic's values is `TOPIC-value`. A registry that is unreachable or overloaded is asked again until
//! patience runs out. An unknown number is not a failure of the registry: the record is bad.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Client, Method, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Value, json};
use tidemill_dataflow::TaskError;
use tokio::runtime::Runtime;

use crate::options::SecretText;
use crate::tls::TlsOptions;

const MEDIA_TYPE: &str = "application/vnd.schemaregistry.v1+json";
const ANSWER: Duration = Duration::from_secs(10);
/// Time between attempts.
const PAUSE: Duration = Duration::from_millis(200);
/// Maximum size of a response.
const BYTES_MAX: usize = 16 << 20;
/// Maximum number of unknown schema numbers that are remembered.
const UNKNOWN_MAX: usize = 10_000;

/// The address of a registry, and the user.
#[derive(Clone, Debug)]
pub(crate) struct SchemaRegistry {
    client: Client,
    url: Url,
    who: Option<(String, SecretText)>,
    patience: Duration,
}

/// A schema in the registry.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RegisteredSchema {
    #[serde(rename = "schemaType", default = "avro")]
    pub(crate) kind: String,
    pub(crate) schema: String,
    #[serde(default)]
    references: Vec<Value>,
}

fn avro() -> String {
    "AVRO".into()
}

impl RegisteredSchema {
    /// Its text, if it is of `kind` and does not reference other schemas.
    ///
    /// # Errors
    /// A description of the problem.
    pub(crate) fn of(self, kind: &str) -> Result<String, String> {
        match self {
            RegisteredSchema { kind: found, .. } if found != kind => Err(format!("is one of {found}, not of {kind}")),
            RegisteredSchema { references, .. } if !references.is_empty() => {
                Err("refers to other schemas, which is not supported".into())
            }
            RegisteredSchema { schema, .. } => Ok(schema),
        }
    }
}

/// Why a request failed.
enum RegistryFailure {
    /// Another attempt may succeed.
    Passing(String),
    Final(String),
}

impl SchemaRegistry {
    /// User and password come from the URL, else from `TIDEMILL_REGISTRY_USER` and `TIDEMILL_REGISTRY_PASSWORD`.
    ///
    /// # Errors
    /// In words, which do not show the URL: it may have a password.
    pub(crate) fn new(url: &SecretText, tls: Option<&TlsOptions>, patience: Duration) -> Result<Self, String> {
        let wrong = || "`registry` must be http://HOST:PORT or https://HOST:PORT".to_owned();
        let mut url = Url::parse(url.reveal()).map_err(|_| wrong())?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(wrong());
        }
        let mut who = None;
        if !url.username().is_empty() {
            who = Some((url.username().to_owned(), SecretText::new(url.password().unwrap_or_default())));
        } else if let Ok(user) = std::env::var("TIDEMILL_REGISTRY_USER") {
            let password = SecretText::or_environment(None, "TIDEMILL_REGISTRY_PASSWORD");
            who = Some((user, password.unwrap_or_else(|| SecretText::new(""))));
        }
        url.set_username("").and_then(|()| url.set_password(None)).map_err(|()| wrong())?;
        let mut client = Client::builder().timeout(ANSWER);
        if url.scheme() == "https" {
            let tls = TlsOptions::or_environment(tls)?.client()?;
            client = client.use_preconfigured_tls(rustls::ClientConfig::clone(&tls));
        }
        let client =
            client.build().map_err(|error| format!("cannot create a client for the schema registry: {error}"))?;
        Ok(SchemaRegistry { client, url, who, patience })
    }

    /// The schema with a number; `None` if there is none.
    ///
    /// # Errors
    /// An error that names the URL.
    pub(crate) async fn schema(&self, number: u32) -> Result<Option<RegisteredSchema>, TaskError> {
        self.get(&["schemas", "ids", &number.to_string()]).await
    }

    /// The newest schema of a subject; `None` if it has none.
    ///
    /// # Errors
    /// An error that names the URL.
    pub(crate) async fn latest(&self, subject: &str) -> Result<Option<RegisteredSchema>, TaskError> {
        self.get(&["subjects", subject, "versions", "latest"]).await
    }

    /// Registers a schema under a subject, if necessary, and returns its number.
    ///
    /// # Errors
    /// An error that names the URL, for example if the schema is incompatible with the subject's others.
    pub(crate) async fn register(&self, subject: &str, kind: &str, schema: &str) -> Result<u32, TaskError> {
        #[derive(Deserialize)]
        struct RegistryResponse {
            id: u32,
        }
        let path = ["subjects", subject, "versions"];
        let body = match kind {
            // Registries without other kinds do not know the field.
            "AVRO" => json!({"schema": schema}),
            kind => json!({"schema": schema, "schemaType": kind}),
        };
        let answer = self.ask(Method::POST, &path, Some(&body)).await?;
        let answer = answer.ok_or_else(|| format!("{}: no such path", self.at(&path)))?;
        let answer: RegistryResponse =
            serde_json::from_value(answer).map_err(|error| format!("{}: {error}", self.at(&path)))?;
        Ok(answer.id)
    }

    /// The subject of a topic's values.
    pub(crate) fn subject(topic: &str) -> String {
        format!("{topic}-value")
    }

    /// Its address, for messages.
    pub(crate) fn name(&self) -> &str {
        self.url.as_str()
    }

    async fn get(&self, path: &[&str]) -> Result<Option<RegisteredSchema>, TaskError> {
        let Some(found) = self.ask(Method::GET, path, None).await? else { return Ok(None) };
        let found = serde_json::from_value(found);
        Ok(Some(found.map_err(|error| format!("{}: not a schema: {error}", self.at(path)))?))
    }

    fn at(&self, path: &[&str]) -> String {
        format!("schema registry {}", self.place(path))
    }

    fn place(&self, path: &[&str]) -> Url {
        let mut url = self.url.clone();
        url.path_segments_mut().expect("one of http has a path").pop_if_empty().extend(path);
        url
    }

    async fn ask(&self, method: Method, path: &[&str], body: Option<&Value>) -> Result<Option<Value>, TaskError> {
        let begun = Instant::now();
        loop {
            match self.attempt(method.clone(), path, body).await {
                Ok(answer) => return Ok(answer),
                Err(RegistryFailure::Passing(_)) if begun.elapsed() < self.patience => tokio::time::sleep(PAUSE).await,
                Err(RegistryFailure::Passing(reason) | RegistryFailure::Final(reason)) => {
                    return Err(format!("{}: {reason}", self.at(path)).into());
                }
            }
        }
    }

    async fn attempt(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
    ) -> Result<Option<Value>, RegistryFailure> {
        let mut request = self.client.request(method, self.place(path)).header(ACCEPT, MEDIA_TYPE);
        if let Some((user, password)) = &self.who {
            request = request.basic_auth(user, Some(password.reveal()));
        }
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, MEDIA_TYPE).body(body.to_string());
        }
        let mut response = request.send().await.map_err(|error| failed(&error))?;
        let status = response.status();
        let mut bytes = Vec::new();
        while let Some(more) = response.chunk().await.map_err(|error| failed(&error))? {
            bytes.extend_from_slice(&more);
            if bytes.len() > BYTES_MAX {
                return Err(RegistryFailure::Final(format!("its answer exceeds {BYTES_MAX} bytes")));
            }
        }
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let said = answer.get("message").and_then(Value::as_str).unwrap_or("no reason given");
        match status {
            status if status.is_success() => match answer {
                Value::Object(_) => Ok(Some(answer)),
                _ => Err(RegistryFailure::Final("its answer is not JSON: this is not a schema registry".into())),
            },
            // An error of the registry itself; an unknown path says nothing about schemas.
            StatusCode::NOT_FOUND if answer.get("error_code").is_some() => Ok(None),
            StatusCode::NOT_FOUND => Err(RegistryFailure::Final("not found: this is not a schema registry".into())),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(RegistryFailure::Final(format!(
                "{status}: set TIDEMILL_REGISTRY_USER and TIDEMILL_REGISTRY_PASSWORD ({said})"
            ))),
            StatusCode::CONFLICT => Err(RegistryFailure::Final(format!(
                "the schema is not compatible with those of the subject ({said}): keep what readers of the topic \
                 need, or choose another topic"
            ))),
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                Err(RegistryFailure::Passing(format!("{status}: {said}")))
            }
            status => Err(RegistryFailure::Final(format!("{status}: {said}"))),
        }
    }
}

fn failed(error: &reqwest::Error) -> RegistryFailure {
    // The cause comes last, after the URL again.
    let mut text = String::new();
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    match crate::tls::remedy(&text) {
        Some(_) => RegistryFailure::Final(crate::tls::told(&text)),
        None => RegistryFailure::Passing(text),
    }
}

/// A cache of schemas by number, for a thread that may block.
pub(crate) struct SchemaCache {
    registry: SchemaRegistry,
    runtime: Runtime,
    kind: &'static str,
    /// The schema, or the reason why there is none.
    known: BTreeMap<u32, Result<String, String>>,
}

impl SchemaCache {
    /// A cache of schemas of a kind: `AVRO` or `JSON`.
    ///
    /// # Errors
    /// System errors.
    pub(crate) fn new(registry: SchemaRegistry, kind: &'static str) -> Result<Self, TaskError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(SchemaCache { registry, runtime, kind, known: BTreeMap::new() })
    }

    /// The schema with a number, or the reason why records with that number are bad.
    ///
    /// # Errors
    /// If the registry does not answer, which is not the record's problem.
    pub(crate) fn find(&mut self, number: u32) -> Result<&Result<String, String>, TaskError> {
        if !self.known.contains_key(&number) {
            if self.known.values().filter(|known| known.is_err()).count() >= UNKNOWN_MAX {
                self.known.retain(|_, known| known.is_ok());
            }
            let name = self.registry.name();
            let found = match self.runtime.block_on(self.registry.schema(number))? {
                Some(found) => found.of(self.kind).map_err(|why| format!("schema {number} of {name} {why}")),
                None => Err(format!("its schema has the number {number}, which {name} does not know")),
            };
            self.known.insert(number, found);
        }
        Ok(&self.known[&number])
    }

    /// The newest schema for a topic's values. Blocks on a separate thread, so it may be called from anywhere.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn latest(registry: &SchemaRegistry, topic: &str, kind: &'static str) -> Result<String, String> {
        let subject = SchemaRegistry::subject(topic);
        let work = || {
            let schemas = SchemaCache::new(registry.clone(), kind).map_err(|error| error.to_string())?;
            let found = schemas.runtime.block_on(registry.latest(&subject)).map_err(|error| error.to_string())?;
            let found = found.ok_or_else(|| {
                format!("schema registry {} has no subject \"{subject}\": pass the schema", registry.name())
            })?;
            found.of(kind).map_err(|why| format!("the newest schema of \"{subject}\" {why}"))
        };
        std::thread::scope(|scope| scope.spawn(work).join().expect("it does not panic"))
    }
}
