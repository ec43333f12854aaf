//! Where RabbitMQ is and how to connect to it.

use std::path::PathBuf;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use url::{Host, Url};

use super::management::ManagementConfig;
use crate::broker::{BrokerError, BrokerErrorKind, BrokerLimits};

/// How to connect to RabbitMQ.
#[derive(Debug, Clone)]
pub struct RabbitMqConfig {
    /// `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS. Several nodes of a cluster as
    /// `amqp://user:password@a,b,c:5673/vhost`, or as several whole URLs separated by commas. No vhost means `/`.
    /// Behind a question mark: `heartbeat` (seconds; 0 for none), `frame_max` (bytes; 0 for no limit of ours) and `auth_mechanism`
    /// (`plain`, or `external` where the client certificate says who we are).
    pub url: SecretString,
    /// The name the connections have in RabbitMQ's own pages.
    pub name: String,
    /// The time limits.
    pub limits: BrokerLimits,
    /// Which certificates to trust and to show; only read with `amqps://`.
    pub tls: RabbitMqTls,
    /// How often both sides say that they are alive. A dead peer is noticed after twice this time; with zero it is not.
    pub heartbeat: Duration,
    /// Where to ask what AMQP has no word for: how many messages are with consumers. The account of a consumer counts them.
    pub management: Option<ManagementConfig>,
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
            management: None,
        }
    }

    /// The virtual host in the URL.
    pub fn vhost(&self) -> Result<String, BrokerError> {
        let nodes = self.nodes()?;
        Ok(nodes.into_iter().next().map(|node| node.vhost).unwrap_or_default())
    }

    /// The user in the URL.
    pub fn user(&self) -> Result<String, BrokerError> {
        let nodes = self.nodes()?;
        Ok(nodes.into_iter().next().map(|node| node.user).unwrap_or_default())
    }

    /// The same broker in another virtual host.
    pub fn in_vhost(&self, vhost: &str) -> Result<Self, BrokerError> {
        let urls = url_of_each_node(self.url.expose_secret());
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
        let nodes = url_of_each_node(self.url.expose_secret())
            .iter()
            .map(|url| Node::parse(url, self.heartbeat))
            .collect::<Result<Vec<_>, _>>()?;
        if nodes.is_empty() { Err(bad_url("it is empty")) } else { Ok(nodes) }
    }
}

/// One node of RabbitMQ, and everything that is needed to connect to it.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) password: SecretString,
    pub(super) vhost: String,
    /// Seconds.
    pub(super) heartbeat: u16,
    pub(super) frame_max: Option<u32>,
    /// The certificate says who we are, and not a password.
    pub(super) by_certificate: bool,
    /// Host and port, for people.
    pub(super) place: String,
}

impl Node {
    fn parse(text: &str, heartbeat: Duration) -> Result<Self, BrokerError> {
        const PORT: u16 = 5672;
        const TLS_PORT: u16 = 5671;
        let url = Url::parse(text).map_err(|why| bad_url(&why.to_string()))?;
        let tls = match url.scheme() {
            "amqp" => false,
            "amqps" => true,
            _ => {
                return Err(bad_url("it should be amqp:// or amqps://, user:password@host:port and a vhost"));
            }
        };
        let host = match url.host() {
            Some(Host::Ipv6(address)) => address.to_string(),
            Some(Host::Ipv4(address)) => address.to_string(),
            Some(Host::Domain(name)) if !name.is_empty() => name.to_owned(),
            _ => return Err(bad_url("it names no host")),
        };
        let port = url.port().unwrap_or(if tls { TLS_PORT } else { PORT });
        let path = url.path();
        if path.contains("://") {
            return Err(bad_url("several of them are separated by commas"));
        }
        let vhost = match decoded(path.strip_prefix('/').unwrap_or(path))? {
            none if none.is_empty() => "/".to_owned(),
            vhost => vhost,
        };
        let mut node = Self {
            tls,
            place: format!("{host}:{port}"),
            host,
            port,
            user: decoded(url.username())?,
            password: decoded(url.password().unwrap_or_default())?.into(),
            vhost,
            heartbeat: seconds(heartbeat),
            frame_max: None,
            by_certificate: false,
        };
        for (name, value) in url.query_pairs() {
            node.set(&name, &value)?;
        }
        if node.user.is_empty() && !node.by_certificate {
            if !is_loopback(&node.host) {
                return Err(bad_url("it names no user; guest is only for a RabbitMQ on this machine"));
            }
            (node.user, node.password) = ("guest".to_owned(), "guest".to_owned().into());
        }
        Ok(node)
    }

    /// What may stand behind the question mark. What is not known there is for other clients.
    fn set(&mut self, name: &str, value: &str) -> Result<(), BrokerError> {
        let bad = |_| bad_url(&format!("its {name} should be a number"));
        match name {
            "heartbeat" => self.heartbeat = value.parse().map_err(bad)?,
            "frame_max" => self.frame_max = Some(value.parse().map_err(bad)?),
            "auth_mechanism" => match value.to_ascii_lowercase().as_str() {
                "plain" => self.by_certificate = false,
                "external" => self.by_certificate = true,
                _ => return Err(bad_url("its auth_mechanism should be plain or external")),
            },
            _ => {}
        }
        Ok(())
    }
}

/// Whole seconds, and 0 for none alone: less than one is one.
fn seconds(heartbeat: Duration) -> u16 {
    let least = u64::from(!heartbeat.is_zero());
    u16::try_from(heartbeat.as_secs().max(least)).unwrap_or(u16::MAX)
}

fn decoded(text: &str) -> Result<String, BrokerError> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded.map(String::from).map_err(|_| bad_url("what is written with % is not UTF-8"))
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn bad_url(why: &str) -> BrokerError {
    BrokerError::new(BrokerErrorKind::Denied, format!("the RabbitMQ URL cannot be used: {why}"))
}

/// The URLs of the nodes in a list of RabbitMQ's, one each: `amqp://u:p@a,b:1/v` and `amqp://u:p@a/v,amqp://u:p@b:1/v` mean the same.
pub fn url_of_each_node(text: &str) -> Vec<String> {
    let mut urls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = rest.match_indices(',').map(|(at, _)| at).find(|at| begins_a_url(&rest[at + 1..]));
        let (one, more) = match end {
            Some(at) => (&rest[..at], rest[at + 1..].trim_start()),
            None => (rest, ""),
        };
        urls.extend(split_hosts(one.trim()));
        rest = more;
    }
    urls
}

/// Names of hosts may begin like a scheme.
fn begins_a_url(text: &str) -> bool {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme.trim_start());
    ["amqp", "amqps"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
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
        nodes.into_iter().map(|n| (n.place, n.vhost, n.password.expose_secret().to_owned())).collect()
    }

    #[test]
    fn several_nodes_in_one_url() {
        let wanted =
            [("a:5672", "v"), ("b:5673", "v")].map(|(p, v)| (p.to_owned(), v.to_owned(), "p,w".to_owned()));
        assert_eq!(nodes("amqp://u:p%2Cw@a,b:5673/v"), wanted);
        assert_eq!(nodes("amqp://u:p%2Cw@a/v, amqp://u:p%2Cw@b:5673/v"), wanted);
        assert_eq!(nodes("amqp://u:p,w@a,b:5673/v"), wanted);
        assert_eq!(nodes("AMQP://u:p%2Cw@a/v,AMQP://u:p%2Cw@b:5673/v"), wanted);
        let alike = nodes("amqp://u:p@amqp1,amqps2:5673/v");
        assert_eq!(alike.iter().map(|node| &*node.0).collect::<Vec<_>>(), ["amqp1:5672", "amqps2:5673"]);
    }

    #[test]
    fn no_heartbeat_is_zero_and_less_than_a_second_is_one() {
        let of = |heartbeat| {
            let config = RabbitMqConfig { heartbeat, ..RabbitMqConfig::new("amqp://localhost") };
            config.nodes().unwrap()[0].heartbeat
        };
        assert_eq!(of(Duration::ZERO), 0);
        assert_eq!(of(Duration::from_millis(200)), 1);
        assert_eq!(of(Duration::from_secs(10)), 10);
        assert_eq!(of(Duration::MAX), u16::MAX);
    }

    #[test]
    fn no_vhost_and_ipv6_are_understood() {
        assert_eq!(nodes("amqp://guest:guest@localhost:5672/")[0].1, "/");
        assert_eq!(nodes("amqp://guest:guest@localhost")[0].1, "/");
        assert_eq!(nodes("amqp://guest:guest@localhost//fis")[0].1, "/fis");
        assert_eq!(nodes("amqp://u:p@[::1]:5672/%2f")[0].0, "::1:5672");
    }

    #[test]
    fn a_url_can_be_moved_to_another_virtual_host() {
        let moved = RabbitMqConfig::new("amqp://u:p%2Cw@a,b:5673/v?heartbeat=5").in_vhost("/fis").unwrap();
        assert_eq!(moved.vhost().unwrap(), "/fis");
        let nodes = moved.nodes().unwrap();
        let places: Vec<_> = nodes.iter().map(|node| (node.place.as_str(), node.heartbeat)).collect();
        assert_eq!(places, [("a:5672", 5), ("b:5673", 5)]);
        assert_eq!(moved.user().unwrap(), "u");
    }

    #[test]
    fn a_bad_url_is_refused_without_repeating_it() {
        for url in [
            "",
            "http://u:secret@h/",
            "amqp:u:secret",
            "amqp://u:secret@:5672/",
            "amqp://rabbit.example/",
            "amqp://u:secret@h/v?heartbeat=often",
            "amqp://u:secret@h/v?auth_mechanism=amqplain",
            "amqp://u:secret@h/%ff",
            "amqp://u:p@a/v amqp://u:secret@b/v",
        ] {
            let error = RabbitMqConfig::new(url).nodes().map(|_| ()).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{url}: {error}");
        }
        let config = RabbitMqConfig::new("amqp://u:secret@h/");
        assert!(!format!("{config:?}").contains("secret"));
    }
}
