//! `postrider push add`: a subscription from flags, and the moment from which events reach it.

use std::time::Duration;

use clap::{ArgGroup, Args};
use postrider::topology::ConsumerName;

use super::{Context, show_secret, told};
use crate::config::PushForm;
use crate::exit::{Exit, usage};
use crate::push_desk::{PushDesk, Signing};
use crate::wiring::WholeStore;

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("source").required(true).args(["queue", "keys"])))]
pub(super) struct Add {
    /// Its name, which is that of its consumer
    name: ConsumerName,
    /// Where its events are POSTed to
    #[arg(long)]
    url: String,
    /// A queue of the configuration
    #[arg(long)]
    queue: Option<String>,
    /// The keys that a queue of its own is bound by, such as shop.order.*
    #[arg(long, value_delimiter = ',')]
    keys: Vec<String>,
    /// Events of one ordering key in order, across retries; with --keys
    #[arg(long, requires = "keys")]
    ordered: bool,
    /// What the body is: envelope, cloudevents or bare
    #[arg(long, default_value = "envelope")]
    form: String,
    /// Sent with every request, such as 'authorization: Bearer …'
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// How long one call may take, such as 10s
    #[arg(long)]
    timeout: Option<String>,
    /// How many calls at the same time
    #[arg(long)]
    concurrency: Option<usize>,
    /// Every 4xx is tried again, as the event-bus design has it
    #[arg(long)]
    strict: bool,
    /// What differs from the status table, such as 404=ack or 5xx=reject
    #[arg(long = "status", value_name = "STATUS=WHAT")]
    statuses: Vec<String>,
    /// What signs its requests
    #[arg(long, value_enum, default_value_t)]
    signing: Signing,
    /// Why, for the audit log
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    reason: String,
    /// Check everything, and make nothing
    #[arg(long)]
    dry_run: bool,
}

/// Makes it, shows its secret, and waits until its queue is bound.
pub(super) async fn run<S: WholeStore>(
    desk: &PushDesk<S>,
    given: &Add,
    context: &Context,
) -> anyhow::Result<Exit> {
    let form = given.form()?;
    desk.check(&form).await.map_err(told)?;
    if given.dry_run {
        context.output.note(&format!("would make the push subscription {}; nothing was made", given.name));
        return Ok(Exit::Ok);
    }
    let shown =
        desk.add(&form, given.signing, &context.environment.actor(), &given.reason).await.map_err(told)?;
    let exit = show_secret(&shown, context)?;
    let said = match desk.bound(&form, Duration::MAX).await {
        None => return Ok(exit),
        Some(true) => "its queue is bound: what is published from now on reaches it",
        Some(false) => {
            "its queue is not bound yet: no `postrider serve` with the role push has taken it up; what is published before that \
             does not reach it"
        }
    };
    context.output.note(said);
    Ok(exit)
}

impl Add {
    /// The flags as the form that the configuration and the API take.
    fn form(&self) -> anyhow::Result<PushForm> {
        let pairs = |given: &[String], by: char, what: &str| -> anyhow::Result<serde_json::Map<_, _>> {
            let pair = |text: &String| {
                let (name, value) =
                    text.split_once(by).ok_or_else(|| usage(format!("{text:?} is no {what}")))?;
                Ok((name.trim().to_owned(), serde_json::Value::from(value.trim())))
            };
            given.iter().map(pair).collect()
        };
        let mut form = serde_json::json!({
            "name": self.name,
            "url": self.url,
            "form": self.form,
            "strict": self.strict,
            "headers": pairs(&self.headers, ':', "header such as 'name: value'")?,
            "status": pairs(&self.statuses, '=', "row such as 404=ack")?,
        });
        let mut set = |name: &str, value: Option<serde_json::Value>| {
            if let Some(value) = value {
                form[name] = value;
            }
        };
        set("queue", self.queue.clone().map(Into::into));
        set("keys", (!self.keys.is_empty()).then(|| self.keys.clone().into()));
        set("ordered", self.ordered.then(|| true.into()));
        set("timeout", self.timeout.clone().map(Into::into));
        set("concurrency", self.concurrency.map(Into::into));
        serde_json::from_value(form).map_err(|error| usage(error.to_string()))
    }
}
