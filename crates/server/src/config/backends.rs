//! Which servers the settings choose: one SQLite file with the embedded broker, or PostgreSQL with RabbitMQ.

use std::fmt;
use std::path::PathBuf;

use postrider::rabbitmq::url_of_each_node;
use postrider::topology::VhostName;
use url::Url;

use super::secret::Secret;
use super::sections::Settings;

/// The servers in use. Prints without passwords.
#[derive(Debug, Clone)]
pub(crate) enum Backends {
    /// Everything in one file, in one process.
    Embedded {
        /// The SQLite file.
        path: PathBuf,
    },
    /// Servers.
    Networked {
        /// PostgreSQL.
        database: Server,
        /// RabbitMQ.
        broker: Server,
    },
    /// RabbitMQ without a database, which is enough to work on its topology.
    BrokerAlone {
        /// RabbitMQ.
        broker: Server,
    },
}

/// A server: how to reach it, and how to speak of it.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    /// The whole url, with its password.
    pub(crate) url: Secret,
    /// The url without its password.
    pub(crate) shown: String,
}

impl Backends {
    /// The choice, or the setting that stands in its way and why. A topology that is made for a virtual host is where the
    /// connection goes, whatever else it says.
    pub(super) fn of(
        settings: &Settings,
        vhost: Option<&VhostName>,
        broker_alone: bool,
    ) -> Result<Self, (&'static str, String)> {
        let database = database(settings)?;
        let broker = broker(settings, vhost)?;
        match (database, broker) {
            (None, None) => Ok(Self::Embedded { path: settings.store.path.clone() }),
            (Some(database), Some(broker)) => Ok(Self::Networked { database, broker }),
            (Some(_), None) => Err((
                "store.url",
                "PostgreSQL goes together with RabbitMQ, and no broker is set; set RABBITMQ_URL (broker.url), \
                 or leave out the database to use the embedded default"
                    .to_owned(),
            )),
            (None, Some(broker)) if broker_alone => Ok(Self::BrokerAlone { broker }),
            (None, Some(_)) => Err((
                "broker",
                "RabbitMQ goes together with PostgreSQL, and no database is set; set DATABASE_URL (store.url), \
                 or leave out the broker to use the embedded default"
                    .to_owned(),
            )),
        }
    }
}

impl fmt::Display for Backends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedded { path } => write!(f, "SQLite file {} with the embedded broker", path.display()),
            Self::Networked { database, broker } => {
                write!(f, "PostgreSQL at {} with RabbitMQ at {}", database.shown, broker.shown)
            }
            Self::BrokerAlone { broker } => write!(f, "RabbitMQ at {}", broker.shown),
        }
    }
}

/// PostgreSQL, if a url is set.
pub(super) fn database(settings: &Settings) -> Result<Option<Server>, (&'static str, String)> {
    let Some(text) = settings.store.url.get() else { return Ok(None) };
    let mut url = parse("store.url", text, &["postgres", "postgresql"], "postgres://user@host:5432/name")?;
    if let Some(password) = settings.store.password.get() {
        set_password("store.password", &mut url, password)?;
    }
    Ok(Some(server(url)))
}

/// The database of an outbox that is not in the store's.
pub(super) fn outbox_database(
    url: &Secret,
    password: &Secret,
) -> Result<Option<Server>, (&'static str, String)> {
    const KEY: &str = "outbox.table.url";
    let Some(text) = url.get() else { return Ok(None) };
    let mut url = parse(KEY, text, &["postgres", "postgresql"], "postgres://user@host:5432/name")?;
    if let Some(password) = password.get() {
        set_password("outbox.table.password", &mut url, password)?;
    }
    Ok(Some(server(url)))
}

/// RabbitMQ, if a url or a host is set. There is no default user and no default password.
fn broker(settings: &Settings, vhost: Option<&VhostName>) -> Result<Option<Server>, (&'static str, String)> {
    let broker = &settings.broker;
    if let Some(text) = broker.url.get() {
        // Several nodes may be given. Each is read for itself, so that no password hides in a path.
        let nodes = url_of_each_node(text).into_iter().map(|node| {
            let mut url = parse("broker.url", &node, &["amqp", "amqps"], "amqp://user@host:5672/vhost")?;
            if let Some(vhost) = vhost {
                set_vhost(&mut url, vhost.as_str());
            }
            with_credentials("broker.url", url, settings)
        });
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let urls: Vec<_> = nodes.iter().filter_map(|node| node.url.get()).collect();
        let shown: Vec<_> = nodes.iter().map(|node| node.shown.as_str()).collect();
        return Ok(Some(Server { url: Secret::new(urls.join(",")), shown: shown.join(",") }));
    }
    if broker.host.is_empty() {
        return Ok(None);
    }
    host_alone("broker.host", &broker.host, "RABBITMQ_URL (broker.url)")?;
    let text = format!("amqp://{}:{}", broker.host, broker.port);
    let mut url = parse("broker.host", &text, &["amqp"], "a host name")?;
    set_vhost(&mut url, vhost.map_or(&broker.vhost, VhostName::as_str));
    with_credentials("broker.host", url, settings).map(Some)
}

/// The path of an AMQP url is the virtual host, in which `/` is written %2f.
fn set_vhost(url: &mut Url, vhost: &str) {
    url.set_path(&vhost.replace('%', "%25").replace('/', "%2f"));
}

/// RabbitMQ's management API: where the settings say, else where it is by default beside the broker; as the broker's user,
/// unless the settings name another.
pub(super) fn management(settings: &Settings, broker: &Server) -> Result<Server, (&'static str, String)> {
    let broker_url = broker.url.get().unwrap_or_default().split(',').next().unwrap_or_default();
    let broker_url = parse("broker.url", broker_url, &["amqp", "amqps"], "amqp://user@host:5672/vhost")?;
    let given = settings.broker.management_url.get();
    let texts: Vec<String> = if let Some(text) = given {
        text.split(',').map(|url| url.trim().to_owned()).collect()
    } else {
        let (scheme, port) = if broker_url.scheme() == "amqps" { ("https", 15671) } else { ("http", 15672) };
        vec![format!("{scheme}://{}:{port}", broker_url.host_str().unwrap_or_default())]
    };
    let mut servers = Vec::new();
    for text in texts {
        let mut url = parse("broker.management_url", &text, &["http", "https"], "http://host:15672")?;
        if url.username().is_empty() {
            let password = broker_url.password().map(str::to_owned);
            let set =
                url.set_username(broker_url.username()).and_then(|()| url.set_password(password.as_deref()));
            set.map_err(|()| {
                ("broker.management_url", "this url cannot carry a user; name a host in it".to_owned())
            })?;
        }
        servers.push(server(url));
    }
    let urls: Vec<_> = servers.iter().filter_map(|server| server.url.get()).collect();
    let shown: Vec<_> = servers.iter().map(|server| server.shown.as_str()).collect();
    Ok(Server { url: Secret::new(urls.join(",")), shown: shown.join(",") })
}

fn with_credentials(
    key: &'static str,
    mut url: Url,
    settings: &Settings,
) -> Result<Server, (&'static str, String)> {
    let broker = &settings.broker;
    if !broker.user.is_empty() && url.username().is_empty() && url.set_username(&broker.user).is_err() {
        return Err(("broker.user", "this url cannot carry a user; name a host in it".to_owned()));
    }
    let mechanism = url.query_pairs().find(|(name, _)| name == "auth_mechanism");
    // The certificate of the connection says who we are.
    if mechanism.is_some_and(|(_, named)| named.eq_ignore_ascii_case("external")) {
        return Ok(server(url));
    }
    if url.username().is_empty() {
        return Err((key, "no user; set RABBITMQ_USER (broker.user): there is no default user".to_owned()));
    }
    if let Some(password) = broker.password.get().filter(|_| url.password().is_none()) {
        set_password("broker.password", &mut url, password)?;
    }
    if let Some(between) = url.password().filter(|password| password.contains(',')) {
        let encoded = between.replace(',', "%2C");
        url.set_password(Some(&encoded))
            .map_err(|()| (key, "this url cannot carry a password".to_owned()))?;
    }
    if url.password().is_none() {
        let problem =
            "no password; set RABBITMQ_PASS or RABBITMQ_PASS_FILE (broker.password): there is no default one";
        return Err((key, problem.to_owned()));
    }
    Ok(server(url))
}

/// Redis, if a url or a host is set.
pub(super) fn redis(settings: &Settings) -> Result<Option<Server>, (&'static str, String)> {
    let redis = &settings.redis;
    let mut url = if let Some(text) = redis.url.get() {
        parse("redis.url", text, &["redis", "rediss"], "redis://host:6379/0")?
    } else if redis.host.is_empty() {
        return Ok(None);
    } else {
        host_alone("redis.host", &redis.host, "REDIS_URL (redis.url)")?;
        // The state database is for progress alone; whoever wants another than 0 for the rest gives a url.
        let text = format!("redis://{}:{}/0", redis.host, redis.port);
        parse("redis.host", &text, &["redis"], "a host name")?
    };
    if let Some(password) = redis.password.get().filter(|_| url.password().is_none()) {
        set_password("redis.password", &mut url, password)?;
    }
    Ok(Some(server(url)))
}

/// A url in the place of a host would be shown with its password, as the path that it is there.
fn host_alone(key: &'static str, host: &str, whole: &str) -> Result<(), (&'static str, String)> {
    if host.contains(['/', '@', '?', '#', '\\']) {
        return Err((
            key,
            format!("must be the name of a host and nothing else; a whole url goes into {whole}"),
        ));
    }
    Ok(())
}

/// Never shows the text itself: it may hold a password.
fn parse(
    key: &'static str,
    text: &str,
    schemes: &[&str],
    example: &str,
) -> Result<Url, (&'static str, String)> {
    let url = Url::parse(text).map_err(|error| (key, format!("not a url ({error}); expected {example}")))?;
    if !schemes.contains(&url.scheme()) {
        return Err((key, format!("{}:// is not supported here; expected {example}", url.scheme())));
    }
    // Another url behind this one would be the path here, and be shown with its password.
    let path = url.path();
    if path.contains("://") || (path.starts_with("//") && path.contains('@')) {
        let problem =
            "there is another url in this one; where several may be given, they are separated by commas";
        return Err((key, problem.to_owned()));
    }
    Ok(url)
}

/// Sets a password as it is. What else would mean something: a percent sign, which a url keeps for what is written with it, and a comma,
/// which stands between addresses.
fn set_password(key: &'static str, url: &mut Url, password: &str) -> Result<(), (&'static str, String)> {
    url.set_password(Some(&password.replace('%', "%25").replace(',', "%2C")))
        .map_err(|()| (key, "this url cannot carry a password; name a host in it".to_owned()))
}

fn server(url: Url) -> Server {
    let whole = Secret::new(url.as_str());
    let mut shown = url;
    // Neither can fail for a url that has a host; where there is none, there is no password either.
    let _ = shown.set_password(None);
    shown.set_query(None);
    shown.set_fragment(None);
    Server { url: whole, shown: shown.to_string() }
}
