//! Long work on many letters or events: a plan first, which changes nothing, then an operation.

mod told;

pub(crate) use told::{told, told_of_events};

use async_trait::async_trait;
use postrider::archive::Shelf;
use postrider::broker::BrokerErrorKind;
use postrider::dead_letter::{Correction, HeaderEdit};
use postrider::envelope::TenantId;
use postrider::envelope::wire::Identity;
use postrider::operation::{
    EventPlan, EventSurvey, LetterPlan, Plan, plan, plan_events, start_as, start_events_as,
};
use postrider::store::{EventFilter, LetterFilter, LetterStatus, Operation, OperationKind};
use postrider::topology::QueueName;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Answer, StoreDesk};
use crate::api::{Code, Problem};
use crate::config::Config;
use crate::outboxes::{self, OpenOutbox};
use crate::wiring::WholeStore;

/// What somebody wants done. A plan answers with the same, frozen: to be sent back as an operation.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    pub(crate) kind: AskedKind,
    /// Which dead letters.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub(crate) filter: LetterFilter,
    /// Which published events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) events: Option<EventFilter>,
    /// Everything that is open, where no filter says which.
    #[serde(default)]
    pub(crate) all: bool,
    /// At most so many, the oldest first: a canary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<u64>,
    /// At most so many a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<f64>,
    /// Another queue than each came from or went to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) to_queue: Option<QueueName>,
    /// Dead letters go on with their old count of attempts.
    #[serde(default)]
    pub(crate) keep_count: bool,
    /// What is corrected in dead letters that are edited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) edit: Option<Correction>,
    /// Which of their headers are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) headers: Option<HeaderEdit>,
    /// Consumers that have applied an event apply it once more.
    #[serde(default)]
    pub(crate) reapply: bool,
    /// The outbox whose events are sent again; the default one, where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) table: Option<String>,
    /// How many the plan came to. With more than that the operation is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) expects: Option<u64>,
}

fn is_nothing(filter: &LetterFilter) -> bool {
    *filter == LetterFilter::default()
}

/// The kinds that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AskedKind {
    /// Dead letters are sent again.
    ReplayLetters,
    /// Dead letters are discarded.
    DiscardLetters,
    /// Dead letters are corrected, and sent as new events.
    EditLetters,
    /// Published events are sent again.
    ReplayOutbox,
}

/// What a plan came to. Nothing was changed.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Planned {
    /// To be sent to `/v1/operations` as it is, with a reason.
    pub(crate) operation: Asked,
    pub(crate) plan: Drawn,
}

/// What matches now.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(crate) enum Drawn {
    /// Of dead letters.
    Letters(Plan),
    /// Of published events.
    Events(EventSurvey),
}

impl Drawn {
    /// How many an operation would take.
    pub(crate) fn total(&self) -> u64 {
        match self {
            Self::Letters(plan) => plan.total,
            Self::Events(survey) => survey.total,
        }
    }
}

#[async_trait]
pub(crate) trait Operations {
    /// Draws up a plan and changes nothing.
    async fn plan(&self, asked: &Asked) -> Answer<Planned>;
    /// Freezes what is asked as an operation, which whoever collects dead letters carries out. One that is there under this id is
    /// what was asked for before, and nothing else is done.
    async fn start(&self, asked: &Asked, id: Option<Uuid>, by: &str, reason: &str) -> Answer<Operation>;
    /// The newest first, or those before one.
    async fn operations(&self, before: Option<Uuid>, limit: usize) -> Answer<Vec<Operation>>;
    /// One of them.
    async fn operation(&self, id: Uuid) -> Answer<Option<Operation>>;
    /// Ends one before its time.
    async fn cancel(&self, id: Uuid, by: &str, reason: &str) -> Answer<Operation>;
}

impl Asked {
    /// What is asked of these letters, with every choice as it is by default.
    pub(crate) fn of_letters(kind: AskedKind, filter: LetterFilter) -> Self {
        Self {
            kind,
            filter,
            events: None,
            all: false,
            limit: None,
            rate: None,
            to_queue: None,
            keep_count: false,
            edit: None,
            headers: None,
            reapply: false,
            table: None,
            expects: None,
        }
    }

    /// The same for one tenant alone, or why not.
    pub(crate) fn keep_to(&mut self, tenant: Option<&TenantId>) -> Answer<()> {
        let Some(own) = tenant else { return Ok(()) };
        let asked = match &mut self.events {
            Some(events) => &mut events.tenant,
            None => &mut self.filter.tenant,
        };
        if asked.as_ref().is_some_and(|other| other != own) {
            return Err(Problem::new(Code::Forbidden, format!("the token is for the tenant {own} alone")));
        }
        *asked = Some(own.clone());
        Ok(())
    }

    fn check(&self) -> Answer<()> {
        let wrong = |told: &str| Err(Problem::new(Code::InvalidRequest, told));
        if self.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return wrong("rate must be a number above 0; leave it out for no limit");
        }
        if self.limit == Some(0) {
            return wrong("limit must be at least 1; a plan changes nothing");
        }
        match (self.edit.is_some() || self.headers.is_some(), self.kind) {
            (false, AskedKind::EditLetters) => {
                return wrong(
                    "say what is corrected: `edit` with a `merge` (RFC 7396) or a `patch` (RFC 6902), or `headers` to `set` or to `remove`",
                );
            }
            (true, AskedKind::EditLetters) if self.keep_count => {
                return wrong("an edited letter is a new event, which has no count to keep");
            }
            (false, _) | (true, AskedKind::EditLetters) => {}
            (true, _) => return wrong("`edit` and `headers` are for edit_letters"),
        }
        // Whoever names others would have everything done to the open ones instead.
        if self.filter.status.is_some_and(|status| status != LetterStatus::Open) {
            return wrong("only open dead letters are touched: leave out `status`, or say \"open\"");
        }
        match (&self.events, self.kind) {
            (None, AskedKind::ReplayOutbox) => wrong("say which events: `events` with from and to"),
            (Some(events), AskedKind::ReplayOutbox) if events.from >= events.to => {
                wrong("`events.from` must be before `events.to`")
            }
            (Some(_), AskedKind::ReplayOutbox) => Ok(()),
            (Some(_), _) => wrong("`events` is for replay_outbox; dead letters are chosen by `filter`"),
            (None, _) if !self.all && is_everything(&self.filter) => {
                wrong("say which dead letters: a filter such as fingerprint, or \"all\": true")
            }
            (None, _) => Ok(()),
        }
    }

    fn letters(&self) -> LetterPlan {
        let Self { filter, limit, to_queue, keep_count, edit, headers, expects, .. } = self.clone();
        LetterPlan { filter, limit, to_queue, keep_count, edit, headers, expects, ..LetterPlan::default() }
    }
}

/// Whether a filter leaves nothing out but what is over, or came later. An empty text is in everything.
fn is_everything(filter: &LetterFilter) -> bool {
    let text = filter.text.clone().filter(|text| !text.is_empty());
    let rest = LetterFilter { status: None, until: None, tenant: None, text, ..filter.clone() };
    is_nothing(&rest)
}

#[async_trait]
impl<S: WholeStore> Operations for StoreDesk<S> {
    async fn plan(&self, asked: &Asked) -> Answer<Planned> {
        asked.check()?;
        let mut operation = asked.clone();
        let drawn = if let Some(events) = self.events_of(asked)? {
            let (outbox, files) = self.archive_of(asked, &events)?;
            Drawn::Events(plan_events(&outbox.store, &events, files.as_ref(), asked.rate).await?)
        } else {
            // What dies after the plan was seen is not in it. Who gives numbers has frozen them himself.
            let now = self.clock.now();
            if operation.filter.ids.is_empty() {
                operation.filter.until = Some(operation.filter.until.map_or(now, |until| until.min(now)));
            }
            operation.filter.status = Some(LetterStatus::Open);
            let broker = (asked.kind != AskedKind::DiscardLetters).then_some(self.broker.as_ref());
            Drawn::Letters(plan(&self.store, broker, &self.letters_of(&operation), asked.rate).await?)
        };
        operation.expects = Some(drawn.total());
        Ok(Planned { operation, plan: drawn })
    }

    async fn start(&self, asked: &Asked, id: Option<Uuid>, by: &str, reason: &str) -> Answer<Operation> {
        if let Some(id) = id
            && let Some(before) = self.operation(id).await?
        {
            return Ok(before);
        }
        let drawn = self.plan(asked).await?;
        if let (Some(expected), total) = (asked.expects, drawn.plan.total())
            && total > expected
        {
            let told = format!("the plan came to {expected}, and by now it is {total}; plan again");
            return Err(Problem::new(Code::Conflict, told));
        }
        let missing = match &drawn.plan {
            Drawn::Letters(plan) => plan.missing_queues.first().cloned(),
            Drawn::Events(_) => self.missing(asked.to_queue.as_ref()).await,
        };
        if let Some(queue) = missing {
            let told = format!("there is no queue {queue}; nothing was changed. Declare it, or name another");
            return Err(Problem::new(Code::InvalidRequest, told));
        }
        let (id, rate) = (id.unwrap_or_else(|| self.clock.new_id()), asked.rate);
        let started = if let Some(events) = self.events_of(asked)? {
            let (outbox, files) = self.archive_of(asked, &events)?;
            start_events_as(&outbox.store, id, &events, files.as_ref(), rate, by, Some(reason)).await?
        } else {
            let kind = match asked.kind {
                AskedKind::DiscardLetters => OperationKind::DiscardLetters,
                AskedKind::EditLetters => OperationKind::EditLetters,
                AskedKind::ReplayLetters | AskedKind::ReplayOutbox => OperationKind::ReplayLetters,
            };
            let letters = self.letters_of(&drawn.operation);
            start_as(&self.store, id, kind, &letters, rate, by, Some(reason)).await?
        };
        let Some(id) = started else {
            return Err(Problem::new(Code::Conflict, "nothing matches any more; nothing was changed"));
        };
        self.operation(id).await?.ok_or_else(|| no_operation(id))
    }

    async fn operations(&self, before: Option<Uuid>, limit: usize) -> Answer<Vec<Operation>> {
        Ok(self.store.operations(before, limit).await?)
    }

    async fn operation(&self, id: Uuid) -> Answer<Option<Operation>> {
        Ok(self.store.operation(id).await?)
    }

    async fn cancel(&self, id: Uuid, by: &str, reason: &str) -> Answer<Operation> {
        let cancelled = self.store.cancel_operation(id, by, reason).await?;
        let operation = self.operation(id).await?.ok_or_else(|| no_operation(id))?;
        if cancelled {
            return Ok(operation);
        }
        let told = format!("operation {id} is {} already; nothing was changed", operation.state.as_str());
        Err(Problem::new(Code::Conflict, told))
    }
}

impl<S: WholeStore> StoreDesk<S> {
    /// With where the events of the configured queues have their identity, for whoever corrects them.
    fn letters_of(&self, asked: &Asked) -> LetterPlan {
        let letters = asked.letters();
        if letters.corrects() { with_identities(letters, &self.config) } else { letters }
    }

    fn events_of(&self, asked: &Asked) -> Answer<Option<EventPlan>> {
        let Some(filter) = asked.events.clone().filter(|_| asked.kind == AskedKind::ReplayOutbox) else {
            return Ok(None);
        };
        let (limit, to_queue, reapply) = (asked.limit, asked.to_queue.clone(), asked.reapply);
        let usual = self.outbox_of(asked)?.replay(&self.config, filter);
        Ok(Some(EventPlan { limit, to_queue, reapply, ..usual }))
    }

    /// The outbox that is asked for. Those of other databases have operations of their own there, which this desk does not show.
    fn outbox_of(&self, asked: &Asked) -> Answer<OpenOutbox<S>> {
        let wrong = |told: String| Problem::new(Code::InvalidRequest, told);
        let outbox = outboxes::find(&self.outboxes, asked.table.as_deref()).map_err(wrong)?;
        match &outbox.choice.database {
            None => Ok(outbox.clone()),
            Some(_) => Err(wrong(format!(
                "{0} is in another database; use `postrider outbox replay --table {0}`",
                outbox.choice.label
            ))),
        }
    }

    fn archive_of(&self, asked: &Asked, plan: &EventPlan) -> Answer<(OpenOutbox<S>, Option<Shelf>)> {
        let outbox = self.outbox_of(asked)?;
        let files = outbox.files(plan)?;
        Ok((outbox, files))
    }

    /// A queue that is not there, as far as the broker can be asked: a replay waits in the outbox for one that is away.
    async fn missing(&self, queue: Option<&QueueName>) -> Option<QueueName> {
        let queue = queue?;
        let depth = self.broker.depth(queue).await;
        depth.is_err_and(|error| error.kind == BrokerErrorKind::NotFound).then(|| queue.clone())
    }
}

/// A plan that knows where the events of the configured queues have their identity.
pub(crate) fn with_identities(letters: LetterPlan, config: &Config) -> LetterPlan {
    let services =
        config.own.layout.services.iter().filter(|service| service.identity != Identity::default());
    let identities = services.map(|service| (service.name().clone(), service.identity.clone()));
    LetterPlan { identities: identities.collect(), ..letters }
}

/// That there is none with this id.
pub(crate) fn no_operation(id: Uuid) -> Problem {
    Problem::new(Code::NotFound, format!("there is no operation {id}"))
}
