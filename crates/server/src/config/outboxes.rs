//! The outboxes: the default one, further tables of its database, and tables of other databases, a service or a shard each.

use std::path::PathBuf;

use postrider::envelope::WireFormat;
use postrider::postgres::OutboxTable as TableName;
use postrider::topology::{ExchangeName, KeyTemplate, Layout};
use serde::Deserialize;

use super::backends::{self, Server};
use super::secret::Secret;
use super::sections::Settings;

/// What people call the default outbox.
pub(crate) const DEFAULT: &str = "event_outbox";

/// An outbox table beside the default one, as it is written down.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutboxTable {
    pub(crate) name: String,
    /// What it is called in metrics, on pages and by `--table`; absent: its name.
    pub(crate) label: Option<String>,
    /// Its database, where that is another than the store's.
    #[serde(default)]
    pub(crate) url: Secret,
    /// The password for `url`.
    #[serde(default)]
    pub(crate) password: Secret,
    /// Where its events go; absent: where those of the default outbox go.
    pub(crate) exchange: Option<String>,
    /// How they are written; absent: as envelopes.
    pub(crate) format: Option<String>,
    /// How events are routed whose rows say nothing; absent: by their type.
    pub(crate) routing_key: Option<String>,
    /// Whether the usual outbox of another database is relayed with it. Not where somebody else does.
    #[serde(default = "yes")]
    pub(crate) relay_usual: bool,
}

fn yes() -> bool {
    true
}

/// An outbox, as it is relayed.
#[derive(Debug, Clone)]
pub(crate) struct OutboxChoice {
    /// What it is called.
    pub(crate) label: String,
    /// Its table; none is the default one.
    pub(crate) table: Option<String>,
    /// Its database, where that is another than the store's.
    pub(crate) database: Option<Server>,
    /// The exchange of rows that name none.
    pub(crate) exchange: ExchangeName,
    /// How its events are written; absent: as the exchange's are.
    pub(crate) format: Option<WireFormat>,
    /// How events are routed whose rows say nothing; absent: by their type.
    pub(crate) routing_key: Option<KeyTemplate>,
    /// The folder of its archive files.
    pub(crate) archive_dir: PathBuf,
}

/// All of them, the default one first, or the setting that cannot be and why.
pub(super) fn all(settings: &Settings, layout: &Layout) -> Result<Vec<OutboxChoice>, (&'static str, String)> {
    const KEY: &str = "outbox.table";
    let archive_dir = &settings.outbox.archive_dir;
    let mut not_ours = Vec::new();
    let mut outboxes = vec![OutboxChoice {
        label: DEFAULT.to_owned(),
        table: None,
        database: None,
        exchange: layout.exchange.clone(),
        format: None,
        routing_key: None,
        archive_dir: archive_dir.clone(),
    }];
    for table in &settings.outbox.table {
        let wrong = |why: &dyn std::fmt::Display| (KEY, format!("{}: {why}", table.name));
        let name = TableName::new(&table.name).map_err(|why| wrong(&why))?;
        let label = match table.label.as_deref() {
            Some(label) => label.to_owned(),
            // The default one is called so already.
            None if table.name == DEFAULT => name.to_string(),
            None => table.name.clone(),
        };
        if !is_plain(&label) {
            return Err(wrong(&format!(
                "{label:?} is no label: letters, digits, _, - and ., 64 bytes at most"
            )));
        }
        if outboxes.iter().any(|other| other.label == label) {
            return Err(wrong(&format!(
                "another outbox is called {label:?}; give this one a label of its own"
            )));
        }
        let database = backends::outbox_database(&table.url, &table.password)?;
        let own = |other: &OutboxChoice| {
            other.table_name() == name
                && other.place() == database.as_ref().map(|server| server.shown.as_str())
        };
        if outboxes.iter().any(own) {
            return Err(wrong(&"this table is an outbox already; name it once"));
        }
        let exchange =
            table.exchange.as_deref().map(ExchangeName::new).transpose().map_err(|why| wrong(&why))?;
        let format = table.format.as_deref().map(str::parse).transpose().map_err(|why| wrong(&why))?;
        let template = table.routing_key.as_deref().map(KeyTemplate::new);
        not_ours.extend(database.as_ref().filter(|_| !table.relay_usual).map(|there| there.shown.clone()));
        outboxes.push(OutboxChoice {
            // Tables of several databases may have one name, and so would their files.
            archive_dir: if database.is_some() { archive_dir.join(&label) } else { archive_dir.clone() },
            label,
            table: Some(table.name.clone()),
            database,
            exchange: exchange.unwrap_or_else(|| layout.exchange.clone()),
            format,
            routing_key: template.transpose().map_err(|why| wrong(&why))?,
        });
    }
    let own = backends::database(settings)?.map(|server| server.shown);
    let implied = implied(&outboxes, &not_ours, own.as_deref(), layout);
    if let Some(twin) = implied.iter().find(|one| outboxes.iter().any(|other| other.label == one.label)) {
        let why = format!(
            "{:?} is what the usual outbox of that database is called; give another label",
            twin.label
        );
        return Err((KEY, why));
    }
    outboxes.extend(implied);
    Ok(outboxes)
}

/// The usual outbox of every other database, where it is not named. What is sent again from another table of that database goes through
/// it, and so does what `postrider.publish` is told of no outbox for: without a relay both would stay there, and nobody would know.
fn implied(
    named: &[OutboxChoice],
    not_ours: &[String],
    own: Option<&str>,
    layout: &Layout,
) -> Vec<OutboxChoice> {
    let at = |outbox: &OutboxChoice| outbox.place().or(own).map(|shown| database_of(shown).to_owned());
    let is_ours = |outbox: &OutboxChoice| {
        !not_ours.iter().any(|shown| Some(database_of(shown)) == outbox.place().map(database_of))
    };
    let mut implied: Vec<OutboxChoice> = Vec::new();
    for outbox in named.iter().filter(|outbox| outbox.database.is_some() && is_ours(outbox)) {
        let usual =
            |other: &OutboxChoice| at(other) == at(outbox) && other.table_name() == TableName::default();
        if named.iter().chain(&implied).any(usual) {
            continue;
        }
        let label = format!("{}.{DEFAULT}", outbox.label);
        implied.push(OutboxChoice {
            archive_dir: outbox.archive_dir.with_file_name(&label),
            label,
            table: Some(TableName::default().to_string()),
            database: outbox.database.clone(),
            exchange: layout.exchange.clone(),
            format: None,
            routing_key: None,
        });
    }
    implied
}

/// Host and name, whoever connects.
fn database_of(shown: &str) -> &str {
    let rest = shown.split_once("://").map_or(shown, |(_, rest)| rest);
    rest.rsplit_once('@').map_or(rest, |(_, place)| place)
}

impl OutboxChoice {
    fn table_name(&self) -> TableName {
        self.table.as_deref().and_then(|name| TableName::new(name).ok()).unwrap_or_default()
    }

    /// Which other database it is in.
    pub(crate) fn place(&self) -> Option<&str> {
        self.database.as_ref().map(|server| server.shown.as_str())
    }
}

fn is_plain(label: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=64).contains(&label.len()) && label.bytes().all(plain) && !label.starts_with('.')
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Environment, Flags};

    #[test]
    fn another_database_has_its_usual_outbox_relayed_too() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("postrider.toml");
        let outboxes = |tables: &str| {
            let text = format!(
                "[store]\nurl = 'postgres://app:x@localhost/app'\n[broker]\nurl = 'amqp://app:x@localhost'\n{tables}"
            );
            std::fs::write(&file, text).unwrap();
            let flags = Flags { file: Some(file.clone()), ..Flags::default() };
            let config = Config::load(&flags, &Environment::default()).unwrap();
            config.outboxes.into_iter().map(|outbox| (outbox.label, outbox.table)).collect::<Vec<_>>()
        };
        let orders = "[[outbox.table]]\nname = 'orders'\nurl = 'postgres://app:x@localhost/eu'\n";
        let usual = ("orders.event_outbox".to_owned(), Some("postrider.event_outbox".to_owned()));
        assert_eq!(outboxes(orders)[2..], [usual]);
        let named = format!(
            "{orders}[[outbox.table]]\nname = 'postrider.event_outbox'\nlabel = 'eu'\nurl = 'postgres://app:x@localhost/eu'\n"
        );
        assert_eq!(outboxes(&named).len(), 3, "who names it says how it is called");
        assert_eq!(
            outboxes("[[outbox.table]]\nname = 'orders'\n").len(),
            2,
            "the store's own is always there"
        );
        let same = "[[outbox.table]]\nname = 'orders'\nurl = 'postgres://other:x@localhost/app'\n";
        assert_eq!(outboxes(same).len(), 2, "whoever connects");
        assert_eq!(outboxes(&format!("{orders}relay_usual = false\n")).len(), 2, "somebody else relays it");
    }
}
