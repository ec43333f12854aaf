//! The topology that the configuration stands for: a preset, your own exchanges and queues, or both.

mod adopted;
mod forms;
mod render;

pub(crate) use forms::{ExchangeForm, QueueForm};
pub(crate) use render::to_toml;

use std::collections::{BTreeMap, BTreeSet};

use postrider::push::{BadSubscription, Source, Subscription};
use postrider::store::{AppliedIn, Registration};
use postrider::topology::{
    BindingKey, ConsumerName, Exchange, ExchangeKind, ExchangeName, Layout, Preset, Queue, QueueName,
    QueuePolicy, Topology, VhostName,
};
use serde::Deserialize;

use super::push::Pushed;
use super::sections::Settings;

/// `[topology]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopologySection {
    preset: String,
    pub(in crate::config) strict: bool,
    vhost: String,
    collect: bool,
    set: BTreeMap<String, SetForm>,
}

/// One value of a preset's parameter, or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum SetForm {
    Flag(bool),
    Number(i64),
    Text(String),
    Several(Vec<String>),
}

/// A setting that cannot be used, and why.
type Wrong = (&'static str, String);

/// The topology that the settings stand for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OwnTopology {
    /// Everything to declare, and what goes with it.
    pub(crate) layout: Layout,
    /// The consumers that are named, as the store would know them had they registered themselves.
    pub(crate) consumers: Vec<Registration>,
}

impl OwnTopology {
    /// Adds the queue that a push subscription has of its own: it has to be there before anything is published, so that no event misses it.
    pub(super) fn add_to(
        &self,
        topology: &mut Topology,
        subscription: &Subscription,
        strict: bool,
    ) -> Result<(), BadSubscription> {
        let service = subscription.service(&self.layout.services, &self.layout.exchange)?;
        let own = Topology::default().service(&service);
        let own = if strict { own } else { own.protected() };
        for queue in own.queues {
            if topology.find_queue(&queue.name).is_none() {
                topology.queues.push(queue);
            }
        }
        *topology = std::mem::take(topology).service(&service);
        Ok(())
    }

    /// Writes the settings out. An error names the setting and what is wrong with it.
    ///
    /// `chosen`: somebody set `outbox.exchange`, so that a preset's own does not replace it.
    pub(super) fn of(settings: &Settings, chosen: bool) -> Result<Self, Wrong> {
        let preset = settings.topology.preset_layout()?;
        let exchange =
            ExchangeName::new(&settings.outbox.exchange).map_err(|e| ("outbox.exchange", e.to_string()))?;
        let exchange = match &preset {
            Some(preset) if !chosen => preset.exchange.clone(),
            _ => exchange,
        };
        if exchange.is_default() {
            return Err(("outbox.exchange", "must name an exchange".to_owned()));
        }
        let mut layout = added(settings, preset, exchange)?;
        layout.collect &= settings.topology.collect && !settings.topology.strict;
        if !settings.topology.vhost.is_empty() {
            let vhost = VhostName::new(&settings.topology.vhost);
            layout.vhost = Some(vhost.map_err(|error| ("topology.vhost", error.to_string()))?);
        }
        check(&layout.topology)?;
        let registration = |(name, queue): (ConsumerName, QueueName)| {
            let service = layout.services.iter().find(|service| *service.name() == queue)?.clone();
            let (topology, exchange) = (layout.topology.clone(), layout.exchange.clone());
            let inbox = settings.consumer.iter().find(|consumer| consumer.name == name)?.inbox.clone();
            Some(Registration {
                name,
                inbox,
                applied_in: AppliedIn::Inbox,
                service,
                topology,
                exchange,
                since: None,
                push: None,
            })
        };
        let consumers = consumers(settings, &layout)?.into_iter().filter_map(registration).collect();
        Ok(Self { layout, consumers })
    }

    /// An event can come again for as long as the outbox could send it again, and for its retries after that. An inbox that
    /// forgets sooner would apply it twice. On PostgreSQL the outbox lets go of whole partitions.
    pub(super) fn fits_the_inbox(
        &self,
        settings: &Settings,
        pushed: &[Pushed],
        partitioned: bool,
    ) -> Result<(), Wrong> {
        const DAY: u64 = 24 * 60 * 60;
        let services =
            self.layout.services.iter().map(|service| (service.retry.longest(), service.name().as_str()));
        let own_queues = pushed.iter().filter_map(|Pushed { subscription, .. }| match &subscription.source {
            Source::Keys { retry, .. } => Some((retry.longest(), subscription.name.as_str())),
            Source::Queue(_) => None,
        });
        let (longest, of) = match services.chain(own_queues).max() {
            Some((longest, queue)) => {
                (longest.as_secs().div_ceil(DAY), format!(" and the retries of {queue}"))
            }
            None => (0, String::new()),
        };
        let (span, until) = if partitioned {
            (settings.outbox.partition.days(), " (until the last day of its partition is as old)")
        } else {
            (0, "")
        };
        let needed = u64::from(settings.outbox.retention_days) + span + longest;
        if u64::from(settings.inbox.retention_days) >= needed {
            return Ok(());
        }
        let text = format!(
            "must be at least {needed}: outbox.retention_days{until}{of} can bring an event again for so long, and an inbox that \
             forgot it would apply it twice"
        );
        Err(("inbox.retention_days", text))
    }
}

impl TopologySection {
    fn preset_layout(&self) -> Result<Option<Layout>, Wrong> {
        if self.preset.is_empty() {
            if let Some(name) = self.set.keys().next() {
                return Err(("topology.set", format!("{name} is set, but no topology.preset is named")));
            }
            return Ok(None);
        }
        let preset = Preset::find(&self.preset).map_err(|error| ("topology.preset", error.to_string()))?;
        let mut set: Vec<(String, String)> = Vec::new();
        for (name, form) in &self.set {
            let values = match form {
                SetForm::Flag(value) => vec![value.to_string()],
                SetForm::Number(value) => vec![value.to_string()],
                SetForm::Text(value) => vec![value.clone()],
                SetForm::Several(values) => values.clone(),
            };
            set.extend(values.into_iter().map(|value| (name.clone(), value)));
        }
        if self.strict && !self.set.contains_key("strict") {
            set.push(("strict".to_owned(), "true".to_owned()));
        }
        preset.layout(&set).map(Some).map_err(|error| ("topology.set", error.to_string()))
    }
}

/// The preset with the exchanges and queues of the configuration added to it.
fn added(settings: &Settings, preset: Option<Layout>, exchange: ExchangeName) -> Result<Layout, Wrong> {
    let base = preset.unwrap_or_else(|| Layout::of(Topology::default(), Vec::new(), exchange.clone()));
    let Layout { mut topology, mut services, mut formats, mut consuming, .. } = base.clone();
    let strict = settings.topology.strict;
    for form in &settings.exchange {
        topology.exchanges.push(form.whole());
        formats.extend(form.format.map(|format| (form.name.clone(), format)));
    }
    if topology.find_exchange(&exchange).is_none() {
        topology.exchanges.insert(0, Exchange::new(exchange.clone(), ExchangeKind::Topic));
    }
    for service in adopted::adopted(settings, &base).map_err(|error| ("consumer", error))? {
        topology.queues.push(adopted::dead_letters(&service));
        topology = topology.service(&service);
        services.push(service);
    }
    let mut own = Vec::new();
    for form in &settings.queue {
        let whole = form.whole(&exchange).map_err(|error| ("queue", error))?;
        consuming.extend(form.consuming().map(|consuming| (form.name.clone(), consuming)));
        topology.queues.push(whole.queue.clone());
        topology.bindings.extend(whole.bindings.iter().cloned());
        own.push((form, whole));
    }
    let taken = |name: &QueueName| {
        own.iter().any(|(form, whole)| {
            form.consume
                && (whole.dead_letter_queue == *name
                    || whole.wait_queues.iter().any(|wait| wait.name == *name))
        })
    };
    if let Some((form, _)) = own.iter().find(|(form, _)| form.consume && taken(&form.name)) {
        let problem = format!(
            "{} is declared twice: it is another queue's wait queue or dead-letter queue too",
            form.name
        );
        return Err(("queue", problem));
    }
    // What is declared in words of its own goes before what a consumed queue brings along.
    for (_, whole) in own.iter().filter(|(form, _)| form.consume) {
        topology = topology.service(whole);
    }
    // A preset has decided for its exchanges already.
    let decided = base.topology.find_exchange(&exchange).is_some()
        || settings.exchange.iter().any(|form| form.name == exchange);
    if !strict && !decided {
        catch_unroutable(&mut topology, &exchange)?;
    }
    for form in &settings.exchange {
        match &form.alternate {
            Some(alternate) => set_alternate(&mut topology, &form.name, alternate),
            None if strict || form.whole().alternate.is_some() => {}
            None if topology.find_exchange(&form.name).is_some_and(|e| e.kind == ExchangeKind::Fanout) => {}
            None => catch_unroutable(&mut topology, &form.name)?,
        }
    }
    if strict {
        // What a consumed queue brings along says nothing that was not written.
        let written = |name: &QueueName| settings.queue.iter().any(|form| form.name == *name);
        let derived = topology.queues.iter_mut().filter(|queue| !written(&queue.name));
        derived.for_each(|queue| queue.policy = QueuePolicy::default());
    } else {
        topology = protect(topology, &own.iter().map(|(form, _)| *form).collect::<Vec<_>>(), &base);
    }
    services.extend(own.into_iter().filter(|(form, _)| form.consume).map(|(_, whole)| whole));
    let layout = Layout::of(topology, services, exchange);
    Ok(Layout { formats, consuming, vhost: base.vhost, collect: base.collect, ..layout })
}

/// Derives the policies of what the configuration adds, where it does not give them itself.
fn protect(topology: Topology, forms: &[&QueueForm], base: &Layout) -> Topology {
    let mut protected = topology.clone().protected();
    for (queue, before) in protected.queues.iter_mut().zip(topology.queues) {
        let given = forms.iter().any(|form| form.name == queue.name && !form.is_protected());
        if given || base.topology.find_queue(&queue.name).is_some() {
            *queue = before;
        }
    }
    protected
}

fn set_alternate(topology: &mut Topology, of: &ExchangeName, alternate: &ExchangeName) {
    let alternate = Some(alternate.clone()).filter(|name| !name.is_default());
    let exchanges = topology.exchanges.iter_mut().filter(|exchange| exchange.name == *of);
    exchanges.for_each(|exchange| exchange.policy.alternate.clone_from(&alternate));
}

/// A fanout and a queue `NAME.unroutable` for what no binding wants.
fn catch_unroutable(topology: &mut Topology, of: &ExchangeName) -> Result<(), Wrong> {
    let name = format!("{of}.unroutable");
    let wrong = |error: postrider::InvalidText| {
        (
            "exchange",
            format!("{error}; its name is made of {of}: give {of} an alternate, or alternate = \"\""),
        )
    };
    let (through, into) = (ExchangeName::new(&name).map_err(wrong)?, QueueName::new(&name).map_err(wrong)?);
    if topology.find_exchange(&through).is_none() {
        topology.exchanges.push(Exchange::new(through.clone(), ExchangeKind::Fanout));
    }
    if topology.find_queue(&into).is_none() {
        topology.queues.push(Queue { safe_dead_lettering: false, ..Queue::quorum(into.clone()) });
        *topology = std::mem::take(topology).bind(through.clone(), into, BindingKey::new("").map_err(wrong)?);
    }
    set_alternate(topology, of, &through);
    Ok(())
}

/// The consumers that are named, each with its queue: the one of its own name, unless it says another.
fn consumers(settings: &Settings, layout: &Layout) -> Result<Vec<(ConsumerName, QueueName)>, Wrong> {
    let wrong = |error: String| ("consumer", error);
    let mut all = Vec::new();
    for consumer in &settings.consumer {
        let queue = match &consumer.queue {
            Some(queue) => queue.clone(),
            None => QueueName::new(consumer.name.as_str()).map_err(|error| wrong(error.to_string()))?,
        };
        // A push subscription may have a queue of its own.
        let declared = layout.services.iter().any(|known| *known.name() == queue);
        if !declared && !settings.push.iter().any(|push| push.name == consumer.name) {
            return Err(wrong(format!("{} consumes {queue}, which no [[queue]] declares", consumer.name)));
        }
        // Checked here, and used by who runs consumers by configuration.
        consumer.config().map_err(wrong)?;
        all.push((consumer.name.clone(), queue));
    }
    let mut names = BTreeSet::new();
    if let Some((name, _)) = all.iter().find(|(name, _)| !names.insert(name)) {
        return Err(wrong(format!("{name} is there twice; a consumer's name is its own")));
    }
    apart_in_redis(settings)?;
    Ok(all)
}

/// What the keys of the HTTP API begin with.
const API_KEYS: &str = "http";

/// Keys in Redis are for one inbox: two that share them would take each other's for their own, and neither is ever spared a look.
fn apart_in_redis(settings: &Settings) -> Result<(), Wrong> {
    let mut inboxes = BTreeMap::from([(API_KEYS, API_KEYS)]);
    for consumer in &settings.consumer {
        let inbox = consumer.inbox.as_ref().unwrap_or(&consumer.name).as_str();
        let prefix = consumer.key_prefix.as_deref().unwrap_or(inbox);
        let of = *inboxes.entry(prefix).or_insert(inbox);
        if of != inbox || prefix == API_KEYS {
            let whose = if prefix == API_KEYS { "the HTTP API" } else { of };
            let problem = format!(
                "{} has its keys in Redis under {prefix:?}, as {whose} has; give it another key_prefix",
                consumer.name
            );
            return Err(("consumer", problem));
        }
    }
    Ok(())
}

/// Every name once, and nothing that leads nowhere.
pub(crate) fn check(topology: &Topology) -> Result<(), Wrong> {
    let mut exchanges = BTreeSet::new();
    for exchange in &topology.exchanges {
        if exchange.name.is_default() || exchange.name.as_str().starts_with("amq.") {
            return Err((
                "exchange",
                format!("{:?} is the broker's own; choose another name", exchange.name),
            ));
        }
        if !exchanges.insert(&exchange.name) {
            return Err(("exchange", format!("{} is declared twice", exchange.name)));
        }
    }
    for exchange in &topology.exchanges {
        if let Some(alternate) = exchange.effective_alternate().filter(|name| !exchanges.contains(name)) {
            return Err((
                "exchange",
                format!("{} has the alternate {alternate}, which is not declared", exchange.name),
            ));
        }
    }
    let mut queues = BTreeSet::new();
    if let Some(twice) = topology.queues.iter().find(|queue| !queues.insert(&queue.name)) {
        return Err(("queue", format!("{} is declared twice", twice.name)));
    }
    for queue in &topology.queues {
        if let Some(argument) = queue.arguments.keys().find(|name| OWN_WORDS.contains(&name.as_str())) {
            let problem =
                format!("{} has {argument} among its arguments; it has a setting of its own", queue.name);
            return Err(("queue", problem));
        }
        let target = queue.effective_dead_letter().map(|target| &target.exchange);
        if let Some(nowhere) = target.filter(|name| !name.is_default() && !exchanges.contains(name)) {
            let problem =
                format!("{} sends dead letters to {nowhere:?}, which no [[exchange]] declares", queue.name);
            return Err(("queue", problem));
        }
    }
    match topology.bindings.iter().find(|binding| !exchanges.contains(&binding.exchange)) {
        Some(binding) => {
            let problem = format!(
                "{} is bound to {:?}, which no [[exchange]] declares",
                binding.queue, binding.exchange
            );
            Err(("queue", problem))
        }
        None => Ok(()),
    }
}

/// Arguments that are settings of a queue; given twice they could disagree.
const OWN_WORDS: [&str; 6] = [
    "x-queue-type",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-single-active-consumer",
];
