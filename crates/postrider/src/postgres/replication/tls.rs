//! TLS, by the same settings and with the same meaning as the pools' connections have.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::trouble::Trouble;
use super::wire::Wire;

/// How to speak TLS.
pub(in crate::postgres) struct Tls {
    /// Go on in clear if the server has no TLS.
    pub(in crate::postgres) optional: bool,
    pub(in crate::postgres) verify: Verify,
    /// Trusted beside the system's authorities.
    pub(in crate::postgres) authority: Option<Pem>,
    /// Our certificate and its key.
    pub(in crate::postgres) certificate: Option<Pem>,
    pub(in crate::postgres) key: Option<Pem>,
}

/// What is checked of a server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::postgres) enum Verify {
    Nothing,
    Authority,
    AuthorityAndName,
}

/// Certificates or a key: a file of them, or their text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::postgres) enum Pem {
    File(PathBuf),
    Text(String),
}

impl Tls {
    /// Asks the server for TLS and shakes hands.
    pub(super) async fn upgrade(
        &self,
        mut tcp: TcpStream,
        host: &str,
        largest: usize,
    ) -> Result<Wire, Trouble> {
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        tcp.write_all(&request).await?;
        match tcp.read_u8().await? {
            b'S' => {}
            b'N' if self.optional => return Ok(Wire::new(tcp, largest)),
            b'N' => return Err(Trouble::Tls("the server has no TLS".to_owned())),
            _ => return Err(Trouble::unexpected("when TLS was asked for")),
        }
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Trouble::Tls(format!("{host} is no name that a certificate can have")))?;
        let connector = TlsConnector::from(Arc::new(self.config()?));
        match connector.connect(name, tcp).await {
            Ok(encrypted) => Ok(Wire::new(encrypted, largest)),
            // What is not accepted comes as an I/O error of invalid data.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Err(Trouble::Tls(error.to_string()))
            }
            Err(error) => Err(Trouble::Lost(error)),
        }
    }

    fn config(&self) -> Result<ClientConfig, Trouble> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| trouble(&error))?;
        let verifier = Arc::new(Verifier::new(self, provider)?);
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                let key = PrivateKeyDer::from_pem_slice(&key.read("client key")?);
                let key =
                    key.map_err(|error| Trouble::Tls(format!("the client key cannot be read: {error}")))?;
                builder
                    .with_client_auth_cert(certificate.certificates("client certificate")?, key)
                    .map_err(|error| trouble(&error))
            }
            (None, None) => Ok(builder.with_no_client_auth()),
            _ => Err(Trouble::Tls("a client certificate needs both sslcert and sslkey".to_owned())),
        }
    }

    fn authorities(&self) -> Result<RootCertStore, Trouble> {
        let mut store = RootCertStore::empty();
        // Of the system's, those that can be read.
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(authority) = &self.authority {
            for certificate in authority.certificates("sslrootcert")? {
                store.add(certificate).map_err(|error| trouble(&error))?;
            }
        }
        Ok(store)
    }
}

impl Pem {
    fn read(&self, what: &str) -> Result<Vec<u8>, Trouble> {
        match self {
            Self::Text(text) => Ok(text.clone().into_bytes()),
            Self::File(file) => std::fs::read(file).map_err(|error| {
                Trouble::Tls(format!("the {what} {} cannot be read: {error}", file.display()))
            }),
        }
    }

    fn certificates(&self, what: &str) -> Result<Vec<CertificateDer<'static>>, Trouble> {
        let text = self.read(what)?;
        let read = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
        read.map_err(|error| Trouble::Tls(format!("the {what} cannot be read: {error}")))
    }
}

fn trouble(error: &dyn std::error::Error) -> Trouble {
    Trouble::Tls(error.to_string())
}

/// Checks what the URL asks for, and no more.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// None where nothing is checked.
    authority: Option<Arc<WebPkiServerVerifier>>,
    name: bool,
}

impl Verifier {
    fn new(tls: &Tls, provider: Arc<CryptoProvider>) -> Result<Self, Trouble> {
        let authority = if tls.verify == Verify::Nothing {
            None
        } else {
            let authorities = Arc::new(tls.authorities()?);
            let builder = WebPkiServerVerifier::builder_with_provider(authorities, Arc::clone(&provider));
            Some(builder.build().map_err(|error| trouble(&error))?)
        };
        Ok(Self { provider, authority, name: tls.verify == Verify::AuthorityAndName })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authority) = &self.authority else { return Ok(ServerCertVerified::assertion()) };
        match authority.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.name => Ok(ServerCertVerified::assertion()),
            answer => answer,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
