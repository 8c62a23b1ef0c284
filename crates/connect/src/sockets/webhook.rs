//! A web server that accepts posts: each body contains one or more JSON objects, concatenated or in an array.
//!
//! | response              | when                                                                                    |
//! |-----------------------|-----------------------------------------------------------------------------------------|
//! | 200                   | the rows were taken by the job or, with `answer` `durable`, are in a durable checkpoint |
//! | 400, with the reason  | something in the body is malformed: none of it is taken                                 |
//! | 401                   | it lacks the required token or signature, see `payload`                                 |
//! | 404, 405              | the path is different, or the method is not POST                                        |
//! | 408                   | the body does not arrive within `patience_s`                                            |
//! | 413                   | the body is too long                                                                    |
//! | 415                   | the body is compressed                                                                  |
//! | 503, with Retry-After | the job takes no more at the moment, or has ended meanwhile                             |
//!
//! A sender without a response, because the job has failed, posts again: with `answer` `durable`, this gives at least
//! once.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use tidemill_dataflow::TaskError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::line_tap::{LineTap, Sender};
use super::payload::{PayloadAuth, SocketPayload};
use super::tell_lost;
use crate::bad_records::BadRecordPolicy;
use crate::decode::{RecordDecoder, RecordLayout};
use crate::error::ConnectError;
use crate::options::SecretText;
use crate::tls::TlsOptions;
use crate::{DeliveryGuarantee, MakeSource, SourceSpec, options};

const NAME: &str = "webhook source";
/// Maximum number of posts that wait for a response.
const WAITING_MAX: usize = 10_000;
const CONNECTIONS_MAX: usize = 10_000;
/// Default time limit for a body, after its head.
const PATIENCE_S: f64 = 30.0;
/// Time limit for the head of a request.
const HEAD: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AnswerWhen {
    #[default]
    Taken,
    Durable,
}

#[derive(Clone, Deserialize)]
struct WebhookOptions {
    /// The address on which it listens.
    #[serde(default = "loopback")]
    host: String,
    port: u16,
    /// Files for TLS: its certificate and, if clients need one too, their authority.
    tls: Option<TlsOptions>,
    #[serde(default = "root")]
    path: String,
    #[serde(default)]
    answer: AnswerWhen,
    /// Authentication of posts; by default, the one for which the environment has a secret.
    auth: Option<PayloadAuth>,
    /// The header with the signature.
    #[serde(default = "github")]
    signature_header: String,
    body_bytes_max: Option<usize>,
    /// Time limit for a body, after its head.
    patience_s: Option<f64>,
}

fn github() -> String {
    "X-Hub-Signature-256".into()
}

fn loopback() -> String {
    "127.0.0.1".into()
}

fn root() -> String {
    "/".into()
}

pub(crate) fn source(spec: &Value, schema: Option<SchemaRef>) -> Result<SourceSpec, ConnectError> {
    let options: Arc<WebhookOptions> = Arc::new(options::read(NAME, spec)?);
    let wrong = |reason: String| ConnectError::option(NAME, reason);
    let schema = options::needed(NAME, schema)?;
    if !options.path.starts_with('/') {
        return Err(wrong("`path` must begin with /".into()));
    }
    let decoder = RecordDecoder::new(RecordLayout::Json, SchemaRef::clone(&schema)).map_err(wrong)?;
    let acceptor =
        options.tls.as_ref().map(|tls| TlsOptions::server(tls).map(TlsAcceptor::from)).transpose().map_err(wrong)?;
    let secrets = ["TIDEMILL_WEBHOOK_TOKEN", "TIDEMILL_WEBHOOK_SECRET"];
    let secrets = secrets.map(|variable| SecretText::or_environment(None, variable));
    let carried = SocketPayload::new(options.auth, &options.signature_header, secrets).map_err(wrong)?;
    let patience = options::seconds("patience_s", options.patience_s.unwrap_or(PATIENCE_S), 0.0).map_err(wrong)?;
    let body_bytes_max = options.body_bytes_max.unwrap_or(options::MESSAGE_BYTES_MAX);
    // A bad row is the sender's problem, and is reported in the response.
    let bad = BadRecordPolicy::default();
    let guarantee = match options.answer {
        AnswerWhen::Taken => DeliveryGuarantee::AtMostOnce,
        AnswerWhen::Durable => DeliveryGuarantee::AtLeastOnce,
    };
    let name = format!("webhook {}:{}{}", options.host, options.port, options.path);
    let (shown, made) = (name.clone(), SchemaRef::clone(&schema));
    let make: MakeSource = Arc::new(move |context| {
        let waits = options.answer == AnswerWhen::Durable;
        if !waits {
            tell_lost(context, &shown);
        }
        if waits && !context.makes_checkpoints() {
            return Err("webhook: `answer` \"durable\" needs a job that makes checkpoints".into());
        }
        if waits && context.at_most_once() {
            let text = "webhook: with `answer` \"durable\", a client that gets no answer posts again; at most once \
                        needs \"taken\"";
            return Err(text.into());
        }
        let (options, decoder, carried) = (Arc::clone(&options), decoder.clone(), carried.clone());
        let acceptor = acceptor.clone();
        let run = move |sender| {
            let waiting = Semaphore::new(WAITING_MAX);
            let server = WebhookServer { options, body_bytes_max, patience, decoder, carried, sender, waiting };
            serve(server, acceptor)
        };
        Ok(Box::new(LineTap::new(SchemaRef::clone(&made), waits, run)))
    });
    Ok(SourceSpec { copies_max: 1, ..SourceSpec::new(name, schema, guarantee, &bad, make) })
}

/// What all connections share.
struct WebhookServer {
    options: Arc<WebhookOptions>,
    body_bytes_max: usize,
    /// Time limit for a body.
    patience: Duration,
    decoder: RecordDecoder,
    carried: SocketPayload,
    sender: Sender,
    waiting: Semaphore,
}

async fn serve(server: WebhookServer, acceptor: Option<TlsAcceptor>) -> Result<(), TaskError> {
    let server = Arc::new(server);
    let address = (server.options.host.as_str(), server.options.port);
    let failed =
        |error: std::io::Error| -> TaskError { format!("webhook {}:{}: {error}", address.0, address.1).into() };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let closed = server.sender.clone();
    let (end, ends) = watch::channel(());
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    let (server, acceptor, ends) = (Arc::clone(&server), acceptor.clone(), ends.clone());
                    connections.spawn(async move {
                        match acceptor {
                            None => connection(server, stream, ends).await,
                            // A failed handshake tells clients that do not use TLS, or are unknown.
                            Some(acceptor) => {
                                if let Ok(Ok(stream)) = timeout(HEAD, acceptor.accept(stream)).await {
                                    connection(server, stream, ends).await;
                                }
                            }
                        }
                    });
                }
                // For example, too many open files: wait a little.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
            Some(_) = connections.join_next() => {}
            () = closed.closed() => break,
        }
    }
    drop((listener, end));
    while connections.join_next().await.is_some() {}
    Ok(())
}

/// Responds on one connection until it ends or, after the pending response, until the job ends.
async fn connection(
    server: Arc<WebhookServer>,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    mut ends: watch::Receiver<()>,
) {
    let service = service_fn(move |request| {
        let server = Arc::clone(&server);
        async move { Ok::<_, Infallible>(server.answer(request).await) }
    });
    let mut builder = http1::Builder::new();
    let serving = builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let mut serving = std::pin::pin!(serving.serve_connection(TokioIo::new(stream), service));
    // Errors do not matter to a client that disconnects.
    tokio::select! {
        _ = serving.as_mut() => {}
        _ = ends.changed() => {
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}

fn response(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    with(status, text, CONTENT_TYPE, "text/plain; charset=utf-8")
}

fn with(status: StatusCode, text: impl Into<Bytes>, header: HeaderName, value: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(header, HeaderValue::from_static(value));
    response
}

fn busy(text: &'static str) -> Response<Full<Bytes>> {
    with(StatusCode::SERVICE_UNAVAILABLE, text, RETRY_AFTER, "1")
}

impl WebhookServer {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        if request.uri().path() != self.options.path {
            return response(StatusCode::NOT_FOUND, format!("rows go to {}\n", self.options.path));
        }
        if request.method() != Method::POST {
            return with(StatusCode::METHOD_NOT_ALLOWED, "rows come by POST\n", ALLOW, "POST");
        }
        let unknown = || with(StatusCode::UNAUTHORIZED, "missing or wrong credentials\n", WWW_AUTHENTICATE, "Bearer");
        let (head, body) = request.into_parts();
        if !self.carried.head(&head.headers) {
            return unknown();
        }
        if let Some(coding) = head.headers.get(CONTENT_ENCODING).filter(|coding| *coding != "identity") {
            let text = format!("the body is compressed ({}): send rows uncompressed\n", coding.to_str().unwrap_or("?"));
            return with(StatusCode::UNSUPPORTED_MEDIA_TYPE, text, ACCEPT_ENCODING, "identity");
        }
        let full = || busy("too many posts are waiting\n");
        // A busy server does not read the body for nothing. A slow sender does not take up a place.
        if self.waiting.available_permits() == 0 {
            return full();
        }
        let patience = self.patience;
        let body = Limited::new(body, self.body_bytes_max).collect();
        let Ok(body) = timeout(patience, body).await else {
            return response(StatusCode::REQUEST_TIMEOUT, format!("the body did not arrive within {patience:?}\n"));
        };
        let Ok(_waiting) = self.waiting.try_acquire() else { return full() };
        let body = match body {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                let text = format!("the body is longer than {} bytes\n", self.body_bytes_max);
                return response(StatusCode::PAYLOAD_TOO_LARGE, text);
            }
            Err(error) => return response(StatusCode::BAD_REQUEST, format!("{error}\n")),
        };
        if !self.carried.body(&head.headers, &body) {
            return unknown();
        }
        let rows = match self.rows(&body) {
            Ok(rows) => rows,
            Err(reason) => return response(StatusCode::BAD_REQUEST, format!("{reason}\n")),
        };
        let count = rows.num_rows();
        if count == 0 {
            return response(StatusCode::OK, "0 rows\n");
        }
        let (answer, answered) = oneshot::channel();
        match self.sender.try_send(((rows, None), Some(answer))) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => return busy("the job accepts no more right now\n"),
            Err(mpsc::error::TrySendError::Closed(_)) => return busy("the job has ended\n"),
        }
        match answered.await {
            Ok(()) => response(StatusCode::OK, format!("{count} rows\n")),
            Err(_) => busy("the job has ended\n"),
        }
    }

    fn rows(&self, body: &[u8]) -> Result<arrow::array::RecordBatch, String> {
        let objects = objects(body)?;
        self.decoder.decode(&objects, |at, reason| Err(format!("row {}: {reason}", at + 1)))
    }
}

/// The objects in a body, each as its original text.
fn objects(body: &[u8]) -> Result<Vec<&[u8]>, String> {
    let mut rest = body.trim_ascii();
    let is_array = rest.first() == Some(&b'[');
    if is_array {
        rest = rest[1..].trim_ascii_start();
    }
    let mut found = Vec::new();
    loop {
        match (rest.first(), is_array) {
            (None, false) if found.is_empty() => return Err("there is no JSON object".into()),
            (None, false) => return Ok(found),
            (None, true) => return Err("the array is not closed".into()),
            (Some(b']'), true) if rest.len() == 1 => return Ok(found),
            (Some(b'{'), _) => {}
            _ => return Err(format!("row {}: there is no JSON object", found.len() + 1)),
        }
        let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<IgnoredAny>();
        match values.next() {
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(format!("row {}: {error}", found.len() + 1)),
            None => unreachable!("it begins with a brace"),
        }
        let (object, behind) = rest.split_at(values.byte_offset());
        found.push(object);
        rest = behind.trim_ascii_start();
        if is_array {
            match rest.first() {
                Some(b',') if rest[1..].trim_ascii_start().first() == Some(&b'{') => {
                    rest = rest[1..].trim_ascii_start()
                }
                Some(b']') => {}
                _ => return Err(format!("row {}: expected a comma and an object, or ]", found.len())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that sends a head but no body would take up a place for good; enough of them would block the server.
    #[tokio::test]
    async fn bodies_that_do_not_come_hold_up_nobody() {
        use arrow::datatypes::{DataType, Field, Schema};
        use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
        let options = Arc::new(options::read(NAME, &serde_json::json!({"port": 1})).unwrap());
        let decoder = RecordDecoder::new(RecordLayout::Json, schema).unwrap();
        let (sender, mut taken) = mpsc::channel(4);
        let server = Arc::new(WebhookServer {
            options,
            body_bytes_max: 1000,
            patience: Duration::from_millis(50),
            decoder,
            carried: SocketPayload::Nothing,
            sender,
            waiting: Semaphore::new(1),
        });
        let (_end, ends) = watch::channel(());
        let post = async |body: &str| {
            let (mut near, far) = duplex(1000);
            tokio::spawn(connection(Arc::clone(&server), far, ends.clone()));
            let head = "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 7\r\n\r\n";
            near.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            near
        };
        let mut stalled = [post("{\"n\"").await, post("").await];
        let mut whole = post("{\"n\":1}").await;
        let taken = timeout(Duration::from_secs(60), taken.recv()).await;
        let ((rows, _), answer) = taken.expect("others are served").unwrap();
        answer.unwrap().send(()).unwrap();
        assert_eq!(rows.num_rows(), 1);
        let mut text = String::new();
        whole.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        for stalled in &mut stalled {
            let mut head = [0; 12];
            stalled.read_exact(&mut head).await.unwrap();
            assert_eq!(&head, b"HTTP/1.1 408");
        }
    }

    /// A malformed body must not be taken in part.
    #[test]
    fn bodies_are_objects_one_and_all() {
        let texts = |body: &str| -> Result<Vec<String>, String> {
            let found = objects(body.as_bytes())?;
            Ok(found.into_iter().map(|object| String::from_utf8(object.to_vec()).unwrap()).collect())
        };
        let (one, two) = (r#"{"a":[1,{"b":"]}"}]}"#.to_owned(), r#"{"c":2}"#.to_owned());
        for body in [
            format!("{one}{two}"),
            format!(" {one}\n{two}\r\n"),
            format!("[{one} ,{two} ]"),
            format!("[{one},\n{two}]"),
        ] {
            assert_eq!(texts(&body).unwrap(), [one.clone(), two.clone()], "{body}");
        }
        assert!(texts("[]").unwrap().is_empty());
        for body in [
            "", "  ", "7", "null", "[1]", "[", "[{}", "[{},", "[{},]", "[{}]x", "[{}{}]", "{} 7", "{\"a\":", "{},{}",
            "]",
        ] {
            assert!(texts(body).is_err(), "{body}");
        }
    }
}
