//! Where Redis is and how to connect to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::{Client, ClientTlsConfig, TlsCertificates};
use secrecy::{ExposeSecret as _, SecretString};

use super::error::{RedisError, RedisErrorKind};

/// How to connect to Redis.
#[derive(Debug, Clone)]
pub struct RedisConfig {
    /// `redis://:password@host:6379/0`, or `rediss://` for TLS.
    pub url: SecretString,
    /// Which certificates to trust and to show; only read with `rediss://`.
    pub tls: RedisTls,
    /// Wait this long for a connection, and this long for each answer.
    pub limit: Duration,
}

/// Certificates, as PEM files.
#[derive(Debug, Clone, Default)]
pub struct RedisTls {
    /// The authorities to trust, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Our own certificate and its chain, for servers that ask for one.
    pub client_cert_file: Option<PathBuf>,
    /// The key to it.
    pub client_key_file: Option<PathBuf>,
}

impl RedisConfig {
    /// The defaults for a URL.
    pub fn new(url: impl Into<String>) -> Self {
        let url = SecretString::from(url.into());
        Self { url, tls: RedisTls::default(), limit: Duration::from_secs(5) }
    }

    /// The driver's client. The driver's own text about a bad URL may repeat it, and is left out.
    pub(super) fn client(&self) -> Result<Client, RedisError> {
        let url = self.url.expose_secret();
        let bad_url = |_| {
            RedisError::new(
                RedisErrorKind::Config,
                "the Redis URL cannot be used; it should be redis:// or rediss://, :password@host:port and a database number",
            )
        };
        Client::open(url).map_err(bad_url)?;
        let Some(certificates) = self.certificates()? else { return Client::open(url).map_err(bad_url) };
        Client::build_with_tls(url, certificates).map_err(unusable)
    }

    /// The driver's client of a cluster, of which the URL names one node.
    pub(super) fn cluster(&self) -> Result<ClusterClient, RedisError> {
        let builder = ClusterClientBuilder::new([self.url.expose_secret()])
            .connection_timeout(self.limit)
            .response_timeout(self.limit);
        let builder = match self.certificates()? {
            Some(certificates) => builder.certs(certificates),
            None => builder,
        };
        builder.build().map_err(unusable)
    }

    /// What TLS needs; nothing without it.
    fn certificates(&self) -> Result<Option<TlsCertificates>, RedisError> {
        if !self.url.expose_secret().starts_with("rediss://") {
            return Ok(None);
        }
        // The process needs one provider of cryptography. Whoever came first (the binary's main, another driver) stays.
        let _installed_before = rustls::crypto::ring::default_provider().install_default();
        let client_tls = match (&self.tls.client_cert_file, &self.tls.client_key_file) {
            (Some(cert), Some(key)) => {
                Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? })
            }
            (None, None) => None,
            _ => {
                return Err(RedisError::new(
                    RedisErrorKind::Config,
                    "a client certificate for Redis needs both its file and its key file",
                ));
            }
        };
        let root_cert = self.tls.ca_file.as_deref().map(read).transpose()?;
        Ok(Some(TlsCertificates { client_tls, root_cert }))
    }
}

fn unusable(error: redis::RedisError) -> RedisError {
    let text = "the certificates for Redis cannot be used; they should be PEM files";
    RedisError::new(RedisErrorKind::Config, text).because(error)
}

fn read(file: &Path) -> Result<Vec<u8>, RedisError> {
    std::fs::read(file).map_err(|error| {
        let message = format!("the certificate file {} for Redis cannot be read: {error}", file.display());
        RedisError::new(RedisErrorKind::Config, message)
    })
}
