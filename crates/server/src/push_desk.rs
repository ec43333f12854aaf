//! What people do with push subscriptions, from the command line and over HTTP: list, add, test, rotate, remove.

mod bound;
mod secret;

pub(crate) use secret::{Shown, Signing};

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use postrider::push::{Answer, Attempt, BY_ENDPOINT, Form, Said, Source, Subscription, SystemNames, judge};
use postrider::store::{LogEntry, MadeIn, Pause, Registration, StoreError, StoredSubscription};
use postrider::topology::ConsumerName;
use postrider::{Clock, Event, EventId, Incoming};
use serde::Serialize;

use crate::at_work::AtWork;
use crate::config::{Live, PushForm, Pushed};
use crate::desk::write_down;
use crate::wiring::WholeStore;

/// The type of the event that a test sends.
const TEST_TYPE: &str = "postrider.push.test";

/// Push subscriptions, wherever they were made.
pub(crate) struct PushDesk<S> {
    pub(crate) store: S,
    pub(crate) config: Live,
    pub(crate) clock: Clock,
    /// What runs in this process.
    pub(crate) at_work: Arc<AtWork>,
}

/// A subscription as it is listed. Never with a secret.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// `active`, `paused`, `tripped`: its endpoint failed for everything, and is left alone for a moment; `unsubscribed`: the broker
    /// hands nothing out to it at the moment; or `refused`: the configuration does not allow it any more, and its events wait.
    pub(crate) state: &'static str,
    pub(crate) queue: String,
    /// What a queue of its own is bound by.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) keys: Vec<String>,
    pub(crate) url: String,
    pub(crate) form: Form,
    pub(crate) concurrency: usize,
    pub(crate) timeout_ms: u64,
    /// The names of the operator's own headers.
    headers: Vec<String>,
    /// How many secrets sign its requests.
    pub(crate) secrets: usize,
    /// Where it was made: in the configuration, or by whom.
    pub(crate) made_by: String,
    pub(crate) pause: Option<Pause>,
    /// The status of the last attempt, or what went wrong.
    pub(crate) last: Option<String>,
}

/// What a test came to.
#[derive(Debug, Serialize)]
pub(crate) struct Tested {
    pub(crate) name: String,
    /// Whether the endpoint took it.
    pub(crate) taken: bool,
    pub(crate) status: Option<u16>,
    pub(crate) took_ms: u64,
    pub(crate) error: Option<String>,
    /// The beginning of the answer.
    pub(crate) answer: String,
}

/// Why something could not be done. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeskError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no such subscription.
    #[error("there is no push subscription {0}; `postrider push ls` lists them")]
    Unknown(ConsumerName),
    /// One of this name is there.
    #[error("there is a push subscription {0} already; nothing was changed")]
    Taken(ConsumerName),
    /// It is in the configuration, and changed there.
    #[error("{0} is a subscription of the configuration; change it there and reload (SIGHUP)")]
    Configured(ConsumerName),
    /// It breaks a rule.
    #[error("{0}")]
    Invalid(String),
}

impl<S: WholeStore> PushDesk<S> {
    /// All of them, by name.
    pub(crate) async fn rows(&self) -> Result<Vec<Row>, DeskError> {
        let (config, pauses) = (self.config.now(), self.store.pauses().await?);
        let mut rows: Vec<_> = config.push.iter().map(configured).collect();
        let ours = |stored: &StoredSubscription| {
            !rows.iter().any(|row| row.name == stored.subscription.name.as_str())
        };
        let stored: Vec<_> = self.store.subscriptions().await?.into_iter().filter(ours).collect();
        rows.extend(stored.iter().map(of_store));
        let refused = stored.iter().map(|stored| &stored.subscription);
        let refused = refused.filter(|one| config.keeps_from(one).is_some());
        let refused: HashSet<_> = refused.map(|one| one.name.to_string()).collect();
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<_> = rows.iter().filter_map(|row| ConsumerName::new(&row.name).ok()).collect();
        let mut last: HashMap<_, _> = self
            .store
            .last_attempts(&names)
            .await?
            .into_iter()
            .map(|last| (last.consumer.clone(), last))
            .collect();
        for row in &mut rows {
            row.pause = pauses.iter().find(|pause| pause.consumer.as_str() == row.name).cloned();
            let Ok(name) = ConsumerName::new(&row.name) else { continue };
            let elsewhere = match &row.pause {
                Some(_) => "paused",
                None if refused.contains(&row.name) => "refused",
                None => "active",
            };
            row.state = self.at_work.state(&name, row.pause.is_some()).unwrap_or(elsewhere);
            row.last = last.remove(&name).map(|last| match (last.status, last.error) {
                (Some(status), _) => status.to_string(),
                (None, error) => error.unwrap_or_default(),
            });
        }
        Ok(rows)
    }

    /// One of them, with what signs it.
    pub(crate) async fn find(&self, name: &ConsumerName) -> Result<Pushed, DeskError> {
        if let Some(pushed) = self.config.now().push.iter().find(|pushed| pushed.subscription.name == *name) {
            return Ok(pushed.clone());
        }
        let all = self.store.subscriptions().await?;
        let found = all.into_iter().find(|stored| stored.subscription.name == *name);
        let Some(found) = found else { return Err(DeskError::Unknown(name.clone())) };
        let secrets = self.store.signing_secrets(name).await?;
        Ok(Pushed { subscription: found.subscription, secrets })
    }

    /// How the last attempts at one went, the newest first; of one that was removed, too, for as long as they are kept.
    pub(crate) async fn attempts(
        &self,
        name: &ConsumerName,
        event: Option<&EventId>,
        limit: u32,
    ) -> Result<Vec<Attempt>, DeskError> {
        let attempts = self.store.attempts(name, event, limit).await?;
        if attempts.is_empty() {
            self.find(name).await?;
        }
        Ok(attempts)
    }

    /// Checks a new one: by itself, and beside everybody else who takes from queues.
    pub(crate) async fn check(&self, form: &PushForm) -> Result<Pushed, DeskError> {
        let config = self.config.now();
        let pushed = form.whole(&config.allowed).map_err(DeskError::Invalid)?;
        let layout = &config.own.layout;
        let service = pushed.subscription.service(&layout.services, &layout.exchange);
        let service = service.map_err(|why| DeskError::Invalid(why.to_string()))?;
        let own = !form.keys().is_empty();
        if let Some(never) = service.bindings.iter().find(|one| own && layout.topology.matches_nothing(one)) {
            return Err(DeskError::Invalid(format!(
                "{}: {:?} matches no event: * and # stand for whole words; write the words out",
                form.name,
                never.key.as_str()
            )));
        }
        if pushed.secrets.len() > 1 {
            return Err(DeskError::Invalid("give one secret, or none to have one made".to_owned()));
        }
        if config.push.iter().any(|other| other.subscription.name == form.name) {
            return Err(DeskError::Configured(form.name.clone()));
        }
        let stored = self.store.subscriptions().await?;
        if stored.iter().any(|other| other.subscription.name == form.name) {
            return Err(DeskError::Taken(form.name.clone()));
        }
        let subscriptions: Vec<_> = stored.iter().map(|stored| &stored.subscription).collect();
        let consumers = self.other_consumers(&stored).await?;
        let refusal = config.refusal(&pushed.subscription, &consumers, &subscriptions);
        match refusal.or_else(|| config.forgets_too_soon(&pushed)) {
            Some(why) => Err(DeskError::Invalid(why)),
            None => Ok(pushed),
        }
    }

    /// Consumers that registered themselves, but for those that are, or were, push subscriptions.
    async fn other_consumers(&self, stored: &[StoredSubscription]) -> Result<Vec<Registration>, DeskError> {
        let (config, mut others) = (self.config.now(), Vec::new());
        for consumer in self.store.registrations().await? {
            let name = &consumer.name;
            let pushed = consumer.push.is_some()
                || config.push.iter().any(|pushed| pushed.subscription.name == *name)
                || stored.iter().any(|stored| stored.subscription.name == *name)
                || !self.store.attempts(name, None, 1).await?.is_empty()
                || self
                    .store
                    .log_of(name.as_str(), 50)
                    .await?
                    .iter()
                    .any(|entry| entry.action == "push.remove");
            if !pushed {
                others.push(consumer);
            }
        }
        Ok(others)
    }

    /// Makes one. Its secret is shown here and nowhere else.
    pub(crate) async fn add(
        &self,
        form: &PushForm,
        signing: Signing,
        by: &str,
        reason: &str,
    ) -> Result<Shown, DeskError> {
        let pushed = self.check(form).await?;
        let secret = pushed.secrets.into_iter().next().or_else(|| signing.fresh(&self.clock));
        let name = pushed.subscription.name.clone();
        if !self.store.create_subscription(&pushed.subscription, secret.as_ref(), by, reason).await? {
            return Err(DeskError::Taken(name));
        }
        let paused_by = self.paused_by(&name, by).await?;
        Ok(Shown { paused_by, ..Shown::of(&name, secret.as_ref()) })
    }

    /// Who paused what was here before. That the endpoint of then is gone says nothing of this one, so that pause ends.
    async fn paused_by(&self, name: &ConsumerName, by: &str) -> Result<Option<String>, DeskError> {
        let Some(pause) = self.store.pause_of(name).await? else { return Ok(None) };
        if pause.by != BY_ENDPOINT {
            return Ok(Some(pause.by));
        }
        self.store.resume(name, by, "its push subscription was made anew").await?;
        Ok(None)
    }

    /// Removes one. Its queue stays, and what is in it; `serve` unbinds it, so that it gets no more.
    pub(crate) async fn remove(&self, name: &ConsumerName, by: &str, reason: &str) -> Result<(), DeskError> {
        self.refuse_configured(name)?;
        if self.store.remove_subscription(name, by, reason).await? {
            return Ok(());
        }
        let left = self.left(name).await?.ok_or_else(|| DeskError::Unknown(name.clone()))?;
        let entry = LogEntry {
            at: self.clock.now(),
            actor: by.to_owned(),
            action: "push.remove".to_owned(),
            subject: name.to_string(),
            reason: Some(reason.to_owned()).filter(|reason| !reason.is_empty()),
            detail: None,
        };
        write_down(&self.store, entry).await?;
        self.store.register(vec![Registration { push: Some(MadeIn::Store), ..left }]).await?;
        Ok(())
    }

    /// What is left of one that was in a configuration: a queue that is bound still.
    pub(crate) async fn left(&self, name: &ConsumerName) -> Result<Option<Registration>, DeskError> {
        let all = self.store.registrations().await?;
        Ok(all.into_iter().find(|left| {
            left.name == *name
                && left.push == Some(MadeIn::Configuration)
                && !left.service.bindings.is_empty()
        }))
    }

    /// A new secret beside the old one, which signs for this long still. Of the same kind, unless another one is asked for: receivers that
    /// have a public key can do nothing with a shared secret.
    pub(crate) async fn rotate(
        &self,
        name: &ConsumerName,
        signing: Option<Signing>,
        old_stays: Duration,
        by: &str,
        reason: &str,
    ) -> Result<Shown, DeskError> {
        self.refuse_configured(name)?;
        let now = self.clock.now();
        let until =
            now.checked_add(old_stays).map_err(|_| DeskError::Invalid("that is too long".to_owned()))?;
        let before = self.store.signing_secrets(name).await?.first().map(Signing::of);
        let signing = signing.or(before).unwrap_or_default();
        let secret = signing
            .fresh(&self.clock)
            .ok_or_else(|| DeskError::Invalid("there is nothing to rotate to".to_owned()))?;
        if !self.store.rotate_secret(name, &secret, until, by, reason).await? {
            return Err(DeskError::Unknown(name.clone()));
        }
        let changed_from = before.filter(|before| *before != signing);
        Ok(Shown { old_until: Some(until), changed_from, ..Shown::of(name, Some(&secret)) })
    }

    /// Sends an event of its own to the endpoint, once, past the queue.
    pub(crate) async fn test(&self, name: &ConsumerName, by: &str) -> Result<Tested, DeskError> {
        let pushed = self.find(name).await?;
        let entry = LogEntry {
            at: self.clock.now(),
            actor: by.to_owned(),
            action: "push.test".to_owned(),
            subject: name.to_string(),
            reason: None,
            detail: None,
        };
        write_down(&self.store, entry).await?;
        let sender = self.sender(&pushed)?;
        let invalid = |error: &dyn std::fmt::Display| DeskError::Invalid(error.to_string());
        let payload = serde_json::json!({ "subscription": name, "sent_at": self.clock.now() });
        let event = Event::new(TEST_TYPE).map_err(|error| invalid(&error))?;
        let event = event.json(&payload).map_err(|error| invalid(&error))?;
        let envelope = event.into_envelope(&self.clock);
        let incoming = Incoming::new(name.clone(), envelope, 1);
        let start = self.clock.monotonic();
        let sent = sender.send(&incoming).await;
        let took_ms = u64::try_from(self.clock.since(start).as_millis()).unwrap_or(u64::MAX);
        let said = match &sent {
            Ok(answer) => judge(answer, &pushed.subscription.status, self.clock.now()),
            Err(error) => Said::Failed(error.failure()),
        };
        let error = match said {
            Said::Done => None,
            Said::Failed(failure) | Said::Gone(failure) => Some(failure.message),
        };
        let (status, answer) = match sent {
            Ok(Answer { status, body, .. }) => (Some(status), beginning(&body)),
            Err(_) => (None, String::new()),
        };
        Ok(Tested { name: name.to_string(), taken: error.is_none(), status, took_ms, error, answer })
    }

    fn sender(&self, pushed: &Pushed) -> Result<postrider::push::Sender, DeskError> {
        let (secrets, allowed) = (pushed.secrets.clone(), self.config.now().allowed.clone());
        let sender = pushed.subscription.sender(secrets, allowed, Arc::new(SystemNames), self.clock.clone());
        sender.map_err(|why| DeskError::Invalid(why.to_string()))
    }

    fn refuse_configured(&self, name: &ConsumerName) -> Result<(), DeskError> {
        if self.config.now().push.iter().any(|pushed| pushed.subscription.name == *name) {
            return Err(DeskError::Configured(name.clone()));
        }
        Ok(())
    }
}

fn beginning(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(2048)]).into_owned()
}

fn configured(pushed: &Pushed) -> Row {
    row(&pushed.subscription, pushed.secrets.len(), "configuration".to_owned())
}

fn of_store(stored: &StoredSubscription) -> Row {
    let secrets = usize::try_from(stored.secrets).unwrap_or(usize::MAX);
    row(&stored.subscription, secrets, stored.created_by.clone())
}

fn row(subscription: &Subscription, secrets: usize, made_by: String) -> Row {
    let (queue, keys) = match &subscription.source {
        Source::Queue(queue) => (queue.to_string(), Vec::new()),
        Source::Keys { keys, .. } => (subscription.name.to_string(), keys.clone()),
    };
    Row {
        name: subscription.name.to_string(),
        state: "active",
        queue,
        keys,
        url: subscription.shown_url(),
        form: subscription.form,
        concurrency: subscription.concurrency,
        timeout_ms: u64::try_from(subscription.limit.as_millis()).unwrap_or(u64::MAX),
        headers: subscription.headers.keys().cloned().collect(),
        secrets,
        made_by,
        pause: None,
        last: None,
    }
}
