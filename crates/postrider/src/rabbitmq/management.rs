//! RabbitMQ's management API: what AMQP cannot tell (arguments, bindings, policies), and the setting of policies.
//!
//! A thin client that knows the few resources we need. Every call has a time limit, and where several nodes are given the
//! next one is asked when one is away. Its counts are statistics, up to five seconds late: nothing is decided by a single
//! look at them.

mod answers;
mod trouble;

pub use answers::{Overview, Permission, Traffic, Vhost, Whoami};
pub use trouble::{ManagementError, ManagementErrorKind};

use std::path::Path;
use std::time::Duration;

use reqwest::{Certificate, Client, Identity, Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use url::Url;

use super::config::RabbitMqTls;
use crate::topology::observed::{Binding, Exchange, Policy, Queue};

/// Where the management API is.
#[derive(Debug, Clone)]
pub struct ManagementConfig {
    /// `http://user:password@host:15672`, or `https://`. Several nodes of a cluster separated by commas.
    pub url: SecretString,
    /// Which certificates to trust and to show; only read with `https://`.
    pub tls: RabbitMqTls,
    /// How long one call may take.
    pub limit: Duration,
}

/// The management API of one broker.
pub struct Management {
    client: Client,
    nodes: Vec<Node>,
}

struct Node {
    url: Url,
    user: String,
    password: SecretString,
    /// Host and port, for people.
    place: String,
}

impl Management {
    /// Reads the addresses and certificates. Connects to nothing yet.
    pub fn new(config: &ManagementConfig) -> Result<Self, ManagementError> {
        // The process needs one provider of cryptography. Whoever came first stays.
        let _installed_before = rustls::crypto::ring::default_provider().install_default();
        let nodes = config.url.expose_secret().split(',').map(str::trim).map(Node::parse);
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let mut builder = Client::builder().timeout(config.limit).no_proxy();
        if nodes.iter().any(|node| node.url.scheme() == "https") {
            if let Some(file) = &config.tls.ca_file {
                let bundle = Certificate::from_pem_bundle(&read(file, "CA file")?);
                builder = builder.tls_certs_only(bundle.map_err(|why| unreadable(file, "CA file", &why))?);
            }
            if let (Some(cert), Some(key)) = (&config.tls.client_cert_file, &config.tls.client_key_file) {
                let mut both = read(cert, "client certificate")?;
                both.extend(read(key, "client key")?);
                let identity = Identity::from_pem(&both);
                builder =
                    builder.identity(identity.map_err(|why| unreadable(cert, "client certificate", &why))?);
            }
        }
        let client = builder.build().map_err(|why| {
            ManagementError::new(ManagementErrorKind::BadUrl, "no HTTP client could be made").because(why)
        })?;
        Ok(Self { client, nodes })
    }

    /// The addresses without their passwords, for people.
    pub fn places(&self) -> String {
        self.nodes.iter().map(|node| node.place.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The broker's version.
    pub async fn overview(&self) -> Result<Overview, ManagementError> {
        self.get(&["overview"]).await
    }

    /// Who we are, and with which tags.
    pub async fn whoami(&self) -> Result<Whoami, ManagementError> {
        self.get(&["whoami"]).await
    }

    /// The virtual hosts that we may see.
    pub async fn vhosts(&self) -> Result<Vec<Vhost>, ManagementError> {
        self.get(&["vhosts"]).await
    }

    /// Creates a virtual host. One that is there already is fine.
    pub async fn create_vhost(&self, vhost: &str) -> Result<(), ManagementError> {
        self.change(Method::PUT, &["vhosts", vhost], &serde_json::json!({})).await
    }

    /// Deletes a virtual host with everything in it.
    pub async fn delete_vhost(&self, vhost: &str) -> Result<(), ManagementError> {
        self.change(Method::DELETE, &["vhosts", vhost], &()).await
    }

    /// Gives a user every right in a virtual host.
    pub async fn grant(&self, vhost: &str, user: &str) -> Result<(), ManagementError> {
        let everything = serde_json::json!({ "configure": ".*", "write": ".*", "read": ".*" });
        self.change(Method::PUT, &["permissions", vhost, user], &everything).await
    }

    /// Creates a user with these tags, separated by commas.
    pub async fn create_user(&self, name: &str, password: &str, tags: &str) -> Result<(), ManagementError> {
        let body = serde_json::json!({ "password": password, "tags": tags });
        self.change(Method::PUT, &["users", name], &body).await
    }

    /// What a user may do in a virtual host, if we may ask.
    pub async fn permission(&self, vhost: &str, user: &str) -> Result<Permission, ManagementError> {
        self.get(&["permissions", vhost, user]).await
    }

    /// All exchanges.
    pub async fn exchanges(&self, vhost: &str) -> Result<Vec<Exchange>, ManagementError> {
        self.get(&["exchanges", vhost]).await
    }

    /// All queues, with counts that may be late or absent.
    pub async fn queues(&self, vhost: &str) -> Result<Vec<Queue>, ManagementError> {
        self.get(&["queues", vhost]).await
    }

    /// What consumers do with each queue, wherever they run.
    pub async fn traffic(&self, vhost: &str) -> Result<Vec<Traffic>, ManagementError> {
        let columns = "columns=name,messages_unacknowledged,message_stats.ack_details.rate";
        self.get_some(&["queues", vhost], Some(columns)).await
    }

    /// One queue; none if there is none of this name.
    pub async fn queue(&self, vhost: &str, name: &str) -> Result<Option<Queue>, ManagementError> {
        match self.get(&["queues", vhost, name]).await {
            Ok(queue) => Ok(Some(queue)),
            Err(error) if error.kind == ManagementErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All bindings.
    pub async fn bindings(&self, vhost: &str) -> Result<Vec<Binding>, ManagementError> {
        self.get(&["bindings", vhost]).await
    }

    /// The bindings of one queue, that of the default exchange included; none if there is no such queue.
    pub async fn bindings_of(&self, vhost: &str, queue: &str) -> Result<Vec<Binding>, ManagementError> {
        match self.get(&["queues", vhost, queue, "bindings"]).await {
            Err(error) if error.kind == ManagementErrorKind::NotFound => Ok(Vec::new()),
            answer => answer,
        }
    }

    /// Binds a queue like another one is bound.
    pub async fn bind(&self, vhost: &str, like: &Binding, queue: &str) -> Result<(), ManagementError> {
        let body = serde_json::json!({ "routing_key": like.routing_key, "arguments": like.arguments });
        self.change(Method::POST, &["bindings", vhost, "e", &like.source, "q", queue], &body).await
    }

    /// Removes a binding of a queue. One that is not there is fine.
    pub async fn unbind(&self, vhost: &str, binding: &Binding) -> Result<(), ManagementError> {
        let Binding { source, destination, properties_key, .. } = binding;
        match self
            .change(Method::DELETE, &["bindings", vhost, "e", source, "q", destination, properties_key], &())
            .await
        {
            Err(error) if error.kind == ManagementErrorKind::NotFound => Ok(()),
            answer => answer,
        }
    }

    /// All policies.
    pub async fn policies(&self, vhost: &str) -> Result<Vec<Policy>, ManagementError> {
        self.get(&["policies", vhost]).await
    }

    /// Sets a policy, whether or not there is one of this name.
    pub async fn set_policy(&self, vhost: &str, policy: &Policy) -> Result<(), ManagementError> {
        self.change(Method::PUT, &["policies", vhost, &policy.name], policy).await
    }

    /// Deletes a policy. One that is not there is fine.
    pub async fn delete_policy(&self, vhost: &str, name: &str) -> Result<(), ManagementError> {
        match self.change(Method::DELETE, &["policies", vhost, name], &()).await {
            Err(error) if error.kind == ManagementErrorKind::NotFound => Ok(()),
            answer => answer,
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &[&str]) -> Result<T, ManagementError> {
        self.get_some(path, None).await
    }

    async fn get_some<T: DeserializeOwned>(
        &self,
        path: &[&str],
        query: Option<&str>,
    ) -> Result<T, ManagementError> {
        let (place, body) = self.ask(Method::GET, path, query, None).await?;
        serde_json::from_slice(&body).map_err(|why| trouble::not_rabbitmq(place).because(why))
    }

    async fn change(
        &self,
        method: Method,
        path: &[&str],
        body: &impl Serialize,
    ) -> Result<(), ManagementError> {
        let body = serde_json::to_vec(body)
            .map_err(|why| ManagementError::new(ManagementErrorKind::Refused, why.to_string()))?;
        self.ask(method, path, None, Some(body)).await.map(|_| ())
    }

    /// Asks the first node that answers. All changes are idempotent, so one that was answered by silence is made again.
    async fn ask(
        &self,
        method: Method,
        path: &[&str],
        query: Option<&str>,
        body: Option<Vec<u8>>,
    ) -> Result<(&str, Vec<u8>), ManagementError> {
        let mut away = None;
        for node in &self.nodes {
            let mut request = self
                .client
                .request(method.clone(), node.address(path, query))
                .basic_auth(&node.user, Some(node.password.expose_secret()))
                .header("accept", "application/json")
                .header("content-type", "application/json");
            if let Some(body) = &body {
                request = request.body(body.clone());
            }
            let answer = async {
                let answer = request.send().await?;
                Ok::<_, reqwest::Error>((answer.status(), answer.bytes().await?.to_vec()))
            };
            match answer.await {
                Ok((status, body)) if status.is_success() => return Ok((&node.place, body)),
                // A node that is starting or stopping answers so.
                Ok((StatusCode::SERVICE_UNAVAILABLE | StatusCode::INTERNAL_SERVER_ERROR, body)) => {
                    away = Some(trouble::stumbled(&node.place, &body));
                }
                Ok((status, body)) => {
                    return Err(trouble::answered(&node.place, &node.user, path, status, &body));
                }
                Err(error) => away = Some(trouble::unreachable(&node.place, error)),
            }
        }
        Err(away.unwrap_or_else(|| ManagementError::new(ManagementErrorKind::BadUrl, "no address was given")))
    }
}

impl Node {
    fn parse(text: &str) -> Result<Self, ManagementError> {
        let bad = |why: &str| {
            let told =
                format!("the management URL cannot be used: {why}; expected http://user:password@host:15672");
            ManagementError::new(ManagementErrorKind::BadUrl, told)
        };
        let mut url = Url::parse(text).map_err(|why| bad(&why.to_string()))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(bad("it is neither http:// nor https://"));
        }
        let Some(host) = url.host_str() else { return Err(bad("it names no host")) };
        let place = format!("{host}:{}", url.port_or_known_default().unwrap_or_default());
        let decoded =
            |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        let (user, password) = (decoded(url.username()), decoded(url.password().unwrap_or_default()));
        if user.is_empty() {
            return Err(bad("it names no user"));
        }
        // Neither fails on a URL that has a host.
        let _ = (url.set_username(""), url.set_password(None));
        Ok(Self { url, user, password: SecretString::from(password), place })
    }

    /// A name may hold slashes: the first virtual host is called `/`.
    fn address(&self, path: &[&str], query: Option<&str>) -> Url {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("api").extend(path);
        }
        url.set_query(query);
        url
    }
}

impl std::fmt::Debug for Management {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Management").field("places", &self.places()).finish_non_exhaustive()
    }
}

fn read(file: &Path, what: &str) -> Result<Vec<u8>, ManagementError> {
    std::fs::read(file).map_err(|why| unreadable(file, what, &why))
}

fn unreadable(file: &Path, what: &str, why: &dyn std::error::Error) -> ManagementError {
    let told = format!("the {what} {} cannot be read: {why}", file.display());
    ManagementError::new(ManagementErrorKind::BadUrl, told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_slashes_stay_one_segment() {
        let node = Node::parse("http://u:p%40ss%2Bw@rabbit.example:15672/prefix/").unwrap();
        let address = node.address(&["queues", "/", "a/b %"], None);
        assert_eq!(address.as_str(), "http://rabbit.example:15672/prefix/api/queues/%2F/a%2Fb%20%25");
        assert_eq!((node.user.as_str(), node.password.expose_secret()), ("u", "p@ss+w"));
        let node = Node::parse("http://u:a&b=c%26+d%25@rabbit.example").unwrap();
        assert_eq!(node.password.expose_secret(), "a&b=c&+d%");
    }

    #[test]
    fn a_bad_url_is_refused_without_repeating_it() {
        for url in ["", "amqp://u:secret@h", "http://u:secret@", "http://rabbit.example"] {
            let error = Node::parse(url).err().unwrap();
            assert!(!error.to_string().contains("secret"), "{url}: {error}");
        }
    }
}
