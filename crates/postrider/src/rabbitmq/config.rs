//! Where RabbitMQ is and how to connect to it.

use std::path::PathBuf;
use std::time::Duration;

use lapin::uri::AMQPUri;
use secrecy::{ExposeSecret, SecretString};
use url::{Host, Url};

use crate::broker::{BrokerError, BrokerErrorKind, BrokerLimits};

/// How to connect to RabbitMQ.
#[derive(Debug, Clone)]
pub struct RabbitMqConfig {
    /// `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS. Several nodes of a cluster as
    /// `amqp://user:password@a,b,c:5673/vhost`, or as several whole URLs separated by commas. No vhost means `/`.
    pub url: SecretString,
    /// The name the connections have in RabbitMQ's own pages.
    pub name: String,
    /// The time limits.
    pub limits: BrokerLimits,
    /// Which certificates to trust and to show; only read with `amqps://`.
    pub tls: RabbitMqTls,
    /// How often both sides say that they are alive. A dead peer is noticed after twice this time.
    pub heartbeat: Duration,
}

/// Certificates, as PEM files. They are read again at every connect, so that renewed ones are picked up.
#[derive(Debug, Clone, Default)]
pub struct RabbitMqTls {
    /// The authorities to trust, instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// Our own certificate and its chain, for servers that ask for one.
    pub client_cert_file: Option<PathBuf>,
    /// The key to it.
    pub client_key_file: Option<PathBuf>,
}

impl RabbitMqConfig {
    /// The defaults for a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: SecretString::from(url.into()),
            name: "postrider".to_owned(),
            limits: BrokerLimits::default(),
            tls: RabbitMqTls::default(),
            heartbeat: Duration::from_secs(10),
        }
    }

    /// The virtual host in the URL.
    pub fn vhost(&self) -> Result<String, BrokerError> {
        let nodes = self.nodes()?;
        Ok(nodes.into_iter().next().map(|node| node.uri.vhost).unwrap_or_default())
    }

    /// The user in the URL.
    pub fn user(&self) -> Result<String, BrokerError> {
        let nodes = self.nodes()?;
        Ok(nodes.into_iter().next().map(|node| node.uri.authority.userinfo.username).unwrap_or_default())
    }

    /// The same broker in another virtual host.
    pub fn in_vhost(&self, vhost: &str) -> Result<Self, BrokerError> {
        let urls = split(self.url.expose_secret());
        let moved = urls.iter().map(|text| {
            let mut url = Url::parse(text).map_err(|why| bad_url(&why.to_string()))?;
            // The path of an AMQP URL is the virtual host, in which `/` is written %2f.
            url.set_path(&vhost.replace('%', "%25").replace('/', "%2f"));
            Ok(url.to_string())
        });
        let moved = moved.collect::<Result<Vec<_>, BrokerError>>()?;
        Ok(Self { url: SecretString::from(moved.join(",")), ..self.clone() })
    }

    /// The nodes in the URL, in its order.
    pub(super) fn nodes(&self) -> Result<Vec<Node>, BrokerError> {
        let nodes = split(self.url.expose_secret())
            .iter()
            .map(|url| Node::parse(url, self.heartbeat))
            .collect::<Result<Vec<_>, _>>()?;
        if nodes.is_empty() { Err(bad_url("it is empty")) } else { Ok(nodes) }
    }
}

/// One node of RabbitMQ.
#[derive(Clone)]
pub(super) struct Node {
    /// Everything the driver needs, the password included.
    pub(super) uri: AMQPUri,
    /// Host and port, for people.
    pub(super) place: String,
}

impl Node {
    fn parse(text: &str, heartbeat: Duration) -> Result<Self, BrokerError> {
        // Errors of the driver's parser repeat the URL, password and all: none of them is passed on.
        let url = Url::parse(text).map_err(|why| bad_url(&why.to_string()))?;
        let mut uri: AMQPUri = text.parse().map_err(|_: String| {
            bad_url("it should be amqp:// or amqps://, user:password@host:port and a vhost")
        })?;
        // The driver's parser takes an IPv6 address for an absent host.
        match url.host() {
            Some(Host::Ipv6(address)) => uri.authority.host = address.to_string(),
            Some(Host::Ipv4(address)) => uri.authority.host = address.to_string(),
            Some(Host::Domain(name)) if !name.is_empty() => {}
            _ => return Err(bad_url("it names no host")),
        }
        if uri.vhost.is_empty() {
            "/".clone_into(&mut uri.vhost);
        }
        if url.username().is_empty()
            && uri.query.auth_mechanism.is_none()
            && !is_loopback(&uri.authority.host)
        {
            return Err(bad_url("it names no user; guest is only for a RabbitMQ on this machine"));
        }
        if uri.query.heartbeat.is_none() {
            uri.query.heartbeat = Some(u16::try_from(heartbeat.as_secs().max(1)).unwrap_or(u16::MAX));
        }
        let place = format!("{}:{}", uri.authority.host, uri.authority.port);
        Ok(Self { uri, place })
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn bad_url(why: &str) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Denied, format!("the RabbitMQ URL cannot be used: {why}"))
}

/// One URL per node: `amqp://u:p@a,b:1/v` and `amqp://u:p@a/v,amqp://u:p@b:1/v` mean the same.
fn split(text: &str) -> Vec<String> {
    let mut urls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = rest
            .match_indices(',')
            .map(|(at, _)| at)
            .find(|at| rest[at + 1..].trim_start().starts_with("amqp"));
        let (one, more) = match end {
            Some(at) => (&rest[..at], rest[at + 1..].trim_start()),
            None => (rest, ""),
        };
        urls.extend(split_hosts(one.trim()));
        rest = more;
    }
    urls
}

fn split_hosts(url: &str) -> Vec<String> {
    let Some((scheme, after)) = url.split_once("://") else { return vec![url.to_owned()] };
    let end = after.find(['/', '?', '#']).unwrap_or(after.len());
    let (authority, tail) = after.split_at(end);
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    hosts.split(',').map(|host| format!("{scheme}://{user}{}{tail}", host.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(url: &str) -> Vec<(String, String, String)> {
        let nodes = RabbitMqConfig::new(url).nodes().unwrap();
        nodes.into_iter().map(|n| (n.place, n.uri.vhost, n.uri.authority.userinfo.password)).collect()
    }

    #[test]
    fn several_nodes_in_one_url() {
        let wanted =
            [("a:5672", "v"), ("b:5673", "v")].map(|(p, v)| (p.to_owned(), v.to_owned(), "p,w".to_owned()));
        assert_eq!(nodes("amqp://u:p%2Cw@a,b:5673/v"), wanted);
        assert_eq!(nodes("amqp://u:p%2Cw@a/v, amqp://u:p%2Cw@b:5673/v"), wanted);
        assert_eq!(nodes("amqp://u:p,w@a,b:5673/v"), wanted);
    }

    #[test]
    fn no_vhost_and_ipv6_are_understood() {
        assert_eq!(nodes("amqp://guest:guest@localhost:5672/")[0].1, "/");
        assert_eq!(nodes("amqp://guest:guest@localhost")[0].1, "/");
        assert_eq!(nodes("amqp://u:p@[::1]:5672/%2f")[0].0, "::1:5672");
    }

    #[test]
    fn a_url_can_be_moved_to_another_virtual_host() {
        let moved = RabbitMqConfig::new("amqp://u:p%2Cw@a,b:5673/v?heartbeat=5").in_vhost("/fis").unwrap();
        assert_eq!(moved.vhost().unwrap(), "/fis");
        let nodes = moved.nodes().unwrap();
        let places: Vec<_> =
            nodes.iter().map(|node| (node.place.as_str(), node.uri.query.heartbeat)).collect();
        assert_eq!(places, [("a:5672", Some(5)), ("b:5673", Some(5))]);
        assert_eq!(moved.user().unwrap(), "u");
    }

    #[test]
    fn a_bad_url_is_refused_without_repeating_it() {
        for url in
            ["", "http://u:secret@h/", "amqp:u:secret", "amqp://u:secret@:5672/", "amqp://rabbit.example/"]
        {
            let error = RabbitMqConfig::new(url).nodes().map(|_| ()).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{url}: {error}");
        }
        let config = RabbitMqConfig::new("amqp://u:secret@h/");
        assert!(!format!("{config:?}").contains("secret"));
    }
}
