//! `[[push]]`, and a subscription as the API takes it: which events are POSTed where, in short form.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider::push::{Allowed, Form, SigningSecret, Source, StatusTable, Subscription, Treatment};
use postrider::topology::{ConsumerName, QueueName};
use serde::Deserialize;
use url::Url;

use super::retry::{Delay, RetryShort};
use super::secret::Secret;

/// A subscription, as people write it. What it does not say is as the library has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PushForm {
    pub(crate) name: ConsumerName,
    /// Where to.
    url: String,
    /// A queue of the configuration …
    pub(in crate::config) queue: Option<QueueName>,
    /// … or the keys that a queue of its own is bound by.
    #[serde(default)]
    keys: Vec<String>,
    ordered: Option<bool>,
    retry: Option<RetryShort>,
    #[serde(default)]
    form: Form,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    timeout: Option<Delay>,
    concurrency: Option<usize>,
    max_rate: Option<f64>,
    #[serde(default)]
    status: BTreeMap<String, Treatment>,
    #[serde(default)]
    strict: bool,
    /// All that sign its requests.
    #[serde(default)]
    secrets: Vec<Secret>,
}

/// A subscription of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct Pushed {
    pub(crate) subscription: Subscription,
    pub(crate) secrets: Vec<SigningSecret>,
}

impl PartialEq for Pushed {
    fn eq(&self, other: &Self) -> bool {
        let texts = |pushed: &Self| {
            pushed.secrets.iter().map(|secret| secret.reveal().to_owned()).collect::<Vec<_>>()
        };
        self.subscription == other.subscription && texts(self) == texts(other)
    }
}

impl PushForm {
    /// The subscription, or what is wrong with it.
    pub(crate) fn whole(&self, allowed: &Allowed) -> Result<Pushed, String> {
        let wrong = |why: String| format!("{}: {why}", self.name);
        let url = Url::parse(&self.url).map_err(|error| wrong(format!("its url cannot be read: {error}")))?;
        let mut subscription = Subscription::new(self.name.clone(), self.source().map_err(wrong)?, url);
        subscription.form = self.form;
        subscription.headers.clone_from(&self.headers);
        subscription.limit = self.timeout.map_or(Subscription::LIMIT, |limit| limit.0);
        subscription.concurrency = self.concurrency.unwrap_or(Subscription::CONCURRENCY);
        subscription.max_rate = self.max_rate;
        subscription.status = StatusTable::new(&self.status, self.strict).map_err(wrong)?;
        subscription.check(allowed).map_err(|why| wrong(why.to_string()))?;
        let secret = |secret: &Secret| SigningSecret::parse(secret.get().unwrap_or_default());
        let secrets = self.secrets.iter().map(secret).collect::<Result<_, _>>();
        Ok(Pushed { subscription, secrets: secrets.map_err(|why| wrong(why.to_string()))? })
    }

    /// What a queue of its own is bound by; empty if it has none.
    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    fn source(&self) -> Result<Source, String> {
        match (&self.queue, self.keys.is_empty()) {
            (Some(queue), true) => {
                if self.ordered.is_some() || self.retry.is_some() {
                    return Err(
                        "its queue says whether it is ordered and when it retries; set that there".to_owned()
                    );
                }
                Ok(Source::Queue(queue.clone()))
            }
            (None, false) => Ok(Source::Keys {
                keys: self.keys.clone(),
                ordered: self.ordered.unwrap_or(false),
                retry: self.retry.clone().unwrap_or_default().whole()?,
            }),
            _ => {
                Err("give either queue (one of the configuration) or keys (for a queue of its own)"
                    .to_owned())
            }
        }
    }
}

/// All of them, each name once. An error names the setting and what is wrong with it.
pub(super) fn all(forms: &[PushForm], allowed: &Allowed) -> Result<Vec<Pushed>, (&'static str, String)> {
    let mut names = std::collections::BTreeSet::new();
    if let Some(twice) = forms.iter().find(|form| !names.insert(&form.name)) {
        return Err(("push", format!("{} is there twice; a subscription's name is its own", twice.name)));
    }
    forms.iter().map(|form| form.whole(allowed).map_err(|why| ("push", why))).collect()
}

/// How long an old secret stays valid beside a new one, unless somebody says otherwise.
pub(crate) const OLD_SECRET_STAYS: Duration = Duration::from_hours(24);

#[cfg(test)]
mod tests {
    use postrider::store::StoredSubscription;

    use super::super::Config;
    use super::*;

    fn read(toml: &str) -> Result<Pushed, String> {
        let form: PushForm = toml::from_str(toml).map_err(|error| error.message().to_owned())?;
        form.whole(&Allowed::default())
    }

    #[test]
    fn a_subscription_says_what_differs() {
        let pushed = read(
            "name = 'mail'\nurl = 'https://example.com/hook'\nkeys = ['shop.order.*']\nordered = true\ntimeout = '3s'\n\
             form = 'cloudevents'\nsecrets = ['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw']\n\
             [status]\n404 = 'ack'\n[headers]\nauthorization = 'Bearer x'\n[retry]\ndelays = ['1s']",
        )
        .unwrap();
        let subscription = pushed.subscription;
        assert_eq!((subscription.limit.as_secs(), subscription.form), (3, Form::CloudEvents));
        assert_eq!(subscription.status.treat(404), Treatment::Ack);
        assert_eq!(pushed.secrets.len(), 1);
    }

    #[test]
    fn what_cannot_be_is_told() {
        let base = "name = 'mail'\n";
        for (rest, told) in [
            ("url = 'https://example.com'", "either queue"),
            ("url = 'nowhere'\nqueue = 'q'", "cannot be read"),
            ("url = 'http://example.com'\nqueue = 'q'", "without TLS"),
            ("url = 'https://127.1'\nqueue = 'q'", "not a public address"),
            ("url = 'https://example.com'\nqueue = 'q'\nordered = true", "its queue says"),
            ("url = 'https://example.com'\nqueue = 'q'\nconcurrency = 0", "from 1 to 1000"),
            ("url = 'https://example.com'\nqueue = 'q'\nsecrets = ['hunter2']", "whsec_"),
            ("url = 'https://example.com'\nqueue = 'q'\nstatus = { teapot = 'ack' }", "no status"),
            (
                "url = 'https://example.com'\nqueue = 'q'\nheaders = { Webhook-Id = 'hunter2' }",
                "written for every",
            ),
        ] {
            let error = read(&format!("{base}{rest}")).unwrap_err();
            assert!(error.contains(told) && !error.contains("hunter2"), "{rest}: {error}");
        }
    }

    #[test]
    fn a_subscription_of_the_store_has_its_queue_in_the_layout_unless_it_is_refused() {
        let made = |text: &str| StoredSubscription {
            subscription: read(text).unwrap().subscription,
            version: 1,
            secrets: 1,
            created_by: "ann".to_owned(),
            created_at: jiff::Timestamp::UNIX_EPOCH,
        };
        let erp = made("name = 'erp'\nurl = 'https://example.com'\nkeys = ['shop.order.*']");
        let billing = made("name = 'billing'\nurl = 'https://example.com'\nkeys = ['shop.#']");
        let config = Config::of_text("[[queue]]\nname = 'billing'\nbind = ['shop.bill.*']").unwrap();
        let topology = config.layout_with(&[erp, billing]).topology;
        let bound = |queue: &str, key: &str| {
            topology.bindings.iter().any(|one| one.queue.as_str() == queue && one.key.as_str() == key)
        };
        assert!(bound("erp", "shop.order.*") && bound("billing", "shop.bill.*"));
        assert!(!bound("billing", "shop.#"), "a queue of the configuration keeps to it");
        for queue in ["erp", "erp.dlq"] {
            assert!(topology.find_queue(&queue.parse().unwrap()).is_some(), "{queue}");
        }
    }
}
