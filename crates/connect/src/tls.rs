//! TLS for all connectors: the trusted authorities and our own identity, as PEM files.
//!
//! | file          | meaning                                         | default variable           | otherwise                |
//! |---------------|-------------------------------------------------|----------------------------|--------------------------|
//! | `ca`          | trusted authorities                             | `TIDEMILL_TLS_CA`          | the system's             |
//! | `certificate` | our own, and those between it and its authority | `TIDEMILL_TLS_CERTIFICATE` | no client certificate    |
//! | `key`         | the key of `certificate`                        | `TIDEMILL_TLS_KEY`         |                          |
//!
//! A server must always present a certificate for its name; this cannot be turned off. Clients use rustls with ring;
//! only librdkafka has its own TLS, and gets the same settings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::Deserialize;

/// TLS options as users write them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsOptions {
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// Checked files.
pub(crate) struct TlsFiles<'a> {
    pub(crate) ca: Option<&'a Path>,
    /// A certificate and its key.
    pub(crate) own: Option<(&'a Path, &'a Path)>,
}

impl TlsOptions {
    /// The given options, completed from the environment.
    ///
    /// # Errors
    /// A description, for a certificate without its key.
    pub(crate) fn or_environment(given: Option<&TlsOptions>) -> Result<TlsOptions, String> {
        let given = given.cloned().unwrap_or_default();
        let or = |given: Option<PathBuf>, variable| given.or_else(|| std::env::var_os(variable).map(PathBuf::from));
        // If only one of them is given, that is an error; the other does not come from the environment.
        let (mut certificate, mut key) = (given.certificate, given.key);
        if certificate.is_none() && key.is_none() {
            certificate = or(None, "TIDEMILL_TLS_CERTIFICATE");
            key = or(None, "TIDEMILL_TLS_KEY");
        }
        if certificate.is_some() != key.is_some() {
            return Err(
                "`certificate` (or TIDEMILL_TLS_CERTIFICATE) and `key` (or TIDEMILL_TLS_KEY) need each other".into()
            );
        }
        Ok(TlsOptions { ca: or(given.ca, "TIDEMILL_TLS_CA"), certificate, key })
    }

    /// The files of the authorities, of the certificate and of its key, for clients that read files themselves.
    ///
    /// # Errors
    /// A description, if a file does not contain what it should.
    pub(crate) fn files(&self) -> Result<TlsFiles<'_>, String> {
        self.client()?;
        Ok(TlsFiles { ca: self.ca.as_deref(), own: self.certificate.as_deref().zip(self.key.as_deref()) })
    }

    /// Whether we have our own certificate.
    pub(crate) fn says_who(&self) -> bool {
        self.certificate.is_some()
    }

    /// The same, under librdkafka's names. Its OpenSSL does not know where the system keeps its authorities.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, String)> {
        let system = || {
            // A folder in the environment takes precedence over the system's file, as in rustls.
            let told = |name| std::env::var_os(name).filter(|value| !value.is_empty());
            if let (None, Some(folders)) = (told("SSL_CERT_FILE"), told("SSL_CERT_DIR")) {
                return std::env::split_paths(&folders).find(|folder| folder.is_dir());
            }
            let found = openssl_probe::probe();
            found.cert_file.or_else(|| found.cert_dir.into_iter().next())
        };
        let named = [
            ("ssl.ca.location", self.ca.clone().or_else(system)),
            ("ssl.certificate.location", self.certificate.clone()),
            ("ssl.key.location", self.key.clone()),
        ];
        named.into_iter().filter_map(|(name, file)| Some((name, file?.display().to_string())))
    }

    /// The configuration of a client.
    ///
    /// # Errors
    /// A description that names the file.
    pub(crate) fn client(&self) -> Result<Arc<ClientConfig>, String> {
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        let builder = builder.with_root_certificates(self.trusted()?);
        Ok(Arc::new(match self.own()? {
            Some((chain, key)) => builder.with_client_auth_cert(chain, key).map_err(|error| self.unfit(&error))?,
            None => builder.with_no_client_auth(),
        }))
    }

    /// The configuration of a server, which has to present a certificate and, if `ca` was given, asks clients for a
    /// certificate of that authority.
    ///
    /// # Errors
    /// A description that names the file, or says that there is no certificate.
    pub(crate) fn server(given: &TlsOptions) -> Result<Arc<ServerConfig>, String> {
        let tls = TlsOptions::or_environment(Some(given))?;
        let Some((chain, key)) = tls.own()? else {
            return Err("a TLS server needs its own `certificate` and `key`".into());
        };
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        let builder = match &given.ca {
            // The environment's authority is about servers, not about clients.
            None => builder.with_no_client_auth(),
            Some(_) => {
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(tls.trusted()?), provider());
                builder.with_client_cert_verifier(verifier.build().map_err(|error| error.to_string())?)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| tls.unfit(&error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    fn trusted(&self) -> Result<RootCertStore, String> {
        let mut store = RootCertStore::empty();
        let Some(ca) = &self.ca else {
            let found = rustls_native_certs::load_native_certs();
            store.add_parsable_certificates(found.certs);
            if store.is_empty() {
                let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
                return Err(format!(
                    "the system trusts no authority{why}: install its certificates (Debian's ca-certificates), or set \
                     a trusted one with `ca` or TIDEMILL_TLS_CA"
                ));
            }
            return Ok(store);
        };
        for certificate in certificates(ca)? {
            store.add(certificate).map_err(|error| format!("{}: {error}", ca.display()))?;
        }
        Ok(store)
    }

    fn own(&self) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, String> {
        let (Some(certificate), Some(key)) = (&self.certificate, &self.key) else { return Ok(None) };
        let found = PrivateKeyDer::from_pem_file(key);
        let found = found.map_err(|error| unread(key, "key (it must not have a password)", &error))?;
        Ok(Some((certificates(certificate)?, found)))
    }

    fn unfit(&self, error: &rustls::Error) -> String {
        let name = |file: &Option<PathBuf>| file.as_deref().unwrap_or(Path::new("")).display().to_string();
        format!("the certificate {} and the key {} do not match: {error}", name(&self.certificate), name(&self.key))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|error| unread(file, "certificate", &error))?;
    match found.is_empty() {
        true => Err(unread(file, "certificate", &PemError::NoItemsFound)),
        false => Ok(found),
    }
}

fn unread(file: &Path, what: &str, error: &PemError) -> String {
    match error {
        PemError::Io(error) => format!("{}: {error}", file.display()),
        PemError::NoItemsFound => format!("{}: it contains no PEM {what}", file.display()),
        other => format!("{}: not a PEM {what}: {other}", file.display()),
    }
}

/// The remedy for a connection error, if it is a permanent TLS error.
pub(crate) fn remedy(error: &str) -> Option<&'static str> {
    const REMEDIES: [(&str, &str); 9] = [
        (
            "UnknownIssuer",
            "no trusted authority signed the server's certificate: set the one that did with ca= or TIDEMILL_TLS_CA",
        ),
        (
            "BadSignature",
            "no trusted authority signed the server's certificate: set the one that did with ca= or TIDEMILL_TLS_CA",
        ),
        (
            "not valid for name",
            "connect to the server by a name that its certificate covers, or give it a certificate for this name",
        ),
        ("certificate expired", "the server needs a new certificate, unless this machine's clock is wrong"),
        ("not valid yet", "the server's certificate is not valid yet, unless this machine's clock is wrong"),
        (
            "CaUsedAsEndEntity",
            "the server's certificate is that of an authority: it needs its own, signed by that authority",
        ),
        (
            "CertificateRequired",
            "the server requires a client certificate: set certificate= and key=, or TIDEMILL_TLS_CERTIFICATE and \
             TIDEMILL_TLS_KEY",
        ),
        ("InvalidContentType", "the server does not speak TLS on this port"),
        ("certificate", "see the reason given for the certificate"),
    ];
    // Nothing is known about errors other than those of TLS.
    let ours = ["invalid peer certificate", "fatal alert", "corrupt message", "received corrupt"];
    if !ours.iter().any(|words| error.contains(words)) {
        return None;
    }
    let found = REMEDIES.iter().find(|(words, _)| error.contains(words));
    Some(found.map_or("server and client cannot agree on TLS", |(_, remedy)| remedy))
}

/// A connection error with the remedy.
pub(crate) fn told(error: &str) -> String {
    remedy(error).map_or_else(|| error.to_owned(), |remedy| format!("{error}: {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate without a key would be silently ignored; an invalid file must be named.
    #[test]
    fn files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| Some(folder.path().join(name));
        std::fs::write(folder.path().join("text"), "nothing").unwrap();
        let alone = TlsOptions { certificate: path("a"), ..TlsOptions::default() };
        assert!(TlsOptions::or_environment(Some(&alone)).unwrap_err().contains("need each other"));
        let missing = TlsOptions { ca: path("none"), ..TlsOptions::default() }.client().unwrap_err();
        assert!(missing.contains("none: No such file"), "{missing}");
        let text = TlsOptions { ca: path("text"), ..TlsOptions::default() }.client().unwrap_err();
        assert!(text.ends_with("text: it contains no PEM certificate"), "{text}");
        let key = TlsOptions { certificate: path("text"), key: path("text"), ..TlsOptions::default() };
        let key = TlsOptions::server(&key).unwrap_err();
        assert!(key.contains("contains no PEM key"), "{key}");
        assert!(
            TlsOptions::server(&TlsOptions { ca: path("text"), ..TlsOptions::default() })
                .unwrap_err()
                .contains("`certificate` and `key`")
        );
    }

    /// A lost connection must be waited for, a wrong certificate must not.
    #[test]
    fn only_errors_that_stay_have_remedies() {
        for error in ["Connection refused (os error 111)", "tls handshake eof", "no such certificate in the queue"] {
            assert_eq!((remedy(error), told(error)), (None, error.to_owned()));
        }
        for (error, words) in [
            ("invalid peer certificate: UnknownIssuer", "TIDEMILL_TLS_CA"),
            ("invalid peer certificate: certificate not valid for name \"a\"; ...", "by a name"),
            ("invalid peer certificate: certificate expired: verification time 1 (UNIX), ...", "new certificate"),
            ("received fatal alert: CertificateRequired", "certificate= and key="),
            ("received corrupt message of type InvalidContentType", "does not speak TLS"),
            ("received fatal alert: HandshakeFailure", "cannot agree"),
        ] {
            assert!(remedy(error).unwrap().contains(words), "{error}");
        }
    }
}
