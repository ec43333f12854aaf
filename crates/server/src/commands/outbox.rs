//! `postrider outbox`: what waits in the outbox, what stands still and why, and how it goes on.

mod replay;

use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use postrider::EventId;
use postrider::envelope::OrderingKey;
use postrider::store::{Kept, OutboxStatus, ParkedKey, RelayId, RowFilter, RowPage, RowView, Unpark};
use serde::Serialize;

use super::Context;
use crate::desk::outbox::{OutboxReport, Standing, dead, nothing_dead, standings};
use crate::desk::write_down;
use crate::exit::{Exit, absent, usage};
use crate::outboxes;
use crate::output::{ago, table};
use crate::wiring::{OnStore, WholeStore, Wired};

/// Parked keys that `status` shows.
const SHOWN: usize = 20;

/// A database that does not answer within this is away.
const PATIENCE: Duration = Duration::from_secs(30);

/// What to do with the outbox.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider outbox status\n  \
    postrider outbox ls --status dead\n  \
    postrider outbox show 0192f5c0-7d2e-7000-8000-000000000001\n  \
    postrider outbox unpark shop.order/42\n  \
    postrider outbox ls --table fis_outbox\n\n\
    An event that cannot be published (no queue wants it, the broker refuses it) is tried again ever less often. After \
    relay.max_attempts it is dead, and the events of its ordering key wait behind it: the key is parked. Mend what was \
    wrong, then unpark it; the events go out in their order.")]
pub(crate) struct OutboxArgs {
    #[command(subcommand)]
    what: What,
    /// Another outbox of [[outbox.table]], by its label or name [default: event_outbox; status and archive: all]
    #[arg(long, global = true, value_name = "OUTBOX", help_heading = "Options of every outbox command")]
    table: Option<String>,
}

#[derive(Debug, Subcommand)]
enum What {
    /// How much waits and for how long, and which keys are parked; exit code 3 if one is
    Status,
    /// List events, the newest first
    Ls {
        /// Only those in this state
        #[arg(long, value_enum)]
        status: Option<Status>,
        /// Only those of this ordering key
        #[arg(long)]
        key: Option<String>,
        /// Only those of this aggregate type, such as shop.order
        #[arg(long, value_name = "TYPE")]
        aggregate_type: Option<String>,
        /// Older than this place, as a page before named it
        #[arg(long, value_name = "PLACE")]
        before: Option<i64>,
        /// So many at most
        #[arg(long, default_value_t = 50, value_parser = super::rows, value_name = "N")]
        limit: usize,
    },
    /// Show one event with its payload
    Show {
        /// Its id
        id: String,
    },
    /// Give the dead events of a key new attempts, so that the key flows again
    #[command(group(ArgGroup::new("which").required(true).args(["key", "id"])))]
    Unpark {
        /// The ordering key, as `outbox status` shows it
        key: Option<String>,
        /// One dead event by its id, for those that have no key
        #[arg(long)]
        id: Option<String>,
        /// Why, for the audit log
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
        /// Say what would be tried again, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Send published events again, from the outbox and its archive
    Replay(replay::ReplayArgs),
    /// Make partitions ahead, and archive and remove what is older than outbox.retention_days, now
    #[command(
        after_help = "The relay does this by itself every ten minutes. What is not published is never removed."
    )]
    Archive {
        /// Say what would be made, archived and removed, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

impl OutboxArgs {
    /// Whether Ctrl-C detaches from it rather than cutting it off.
    pub(crate) fn detaches(&self) -> bool {
        matches!(self.what, What::Replay(_))
    }
}

/// The states of an event.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Status {
    /// Not tried yet
    Pending,
    /// Confirmed by the broker
    Published,
    /// Failed at least once, still tried
    Failed,
    /// Given up; its key is parked
    Dead,
}

impl From<Status> for OutboxStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Pending => Self::Pending,
            Status::Published => Self::Published,
            Status::Failed => Self::Failed,
            Status::Dead => Self::Dead,
        }
    }
}

/// The command, on a store.
pub(crate) struct Outbox<'a> {
    pub(crate) args: OutboxArgs,
    pub(crate) context: &'a Context,
}

/// What `unpark` prints.
#[derive(Serialize)]
struct Freed {
    ids: Vec<String>,
    dry_run: bool,
}

impl OnStore for Outbox<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        wired.store.check().await?;
        let open = outboxes::open(&wired.store, &self.context.config, &self.context.clock)?;
        let table = self.args.table.as_deref();
        let asked = outboxes::named(&open, table)?;
        let all = if table.is_some() { std::slice::from_ref(&asked) } else { &open };
        let store = &asked.store;
        match &self.args.what {
            What::Status => self.status(&standings(all, SHOWN, PATIENCE).await),
            What::Ls { status, key, aggregate_type, before, limit } => {
                let filter = RowFilter {
                    status: status.map(Into::into),
                    key: key.as_deref().map(OrderingKey::new).transpose()?,
                    aggregate_type: aggregate_type.clone(),
                    before: *before,
                    ..RowFilter::default()
                };
                self.list(&store.list(&filter, *limit).await?)
            }
            What::Show { id } => match store.find(&EventId::new(id)?).await? {
                Some(row) => self.show(&row),
                None => Err(absent(format!(
                    "no event {id} is in the outbox; an old one may be in the archive, and `postrider event trace {id}` says what else is known of it"
                ))),
            },
            What::Unpark { key, id, reason, dry_run } => {
                let target = target(key.as_deref(), id.as_deref())?;
                let mut ids = dead(store, &target).await?;
                if ids.is_empty() {
                    return Err(absent(nothing_dead(&target)));
                }
                if !*dry_run {
                    let entry = self.context.log_entry("outbox.unparked", asked.subject(&target), reason);
                    write_down(&wired.store, entry).await?;
                    ids = store.unpark(&target).await?.iter().map(ToString::to_string).collect();
                }
                self.freed(ids, *dry_run)
            }
            What::Replay(args) => replay::replay(args, &wired, &asked, self.context).await,
            What::Archive { dry_run } => {
                let worker = RelayId::of_process(&self.context.clock);
                let (mut rounds, mut failed) = (Vec::new(), None);
                for outbox in all {
                    let house = outbox.house(&self.context.config);
                    let kept = if *dry_run {
                        outbox.store.would_keep_house(&house).await.map(Some)
                    } else {
                        outbox.store.keep_house(&worker, &house).await
                    };
                    let (kept, error) = match kept {
                        Ok(kept) => (kept, None),
                        Err(error) => (None, Some(error)),
                    };
                    let (outbox, told) =
                        (outbox.choice.label.clone(), error.as_ref().map(ToString::to_string));
                    rounds.push(Round { outbox, dry_run: *dry_run, kept, error: told });
                    failed = failed.or(error);
                }
                // One whose database is away, or which is somebody else's, keeps nobody from the others.
                let all_failed = rounds.iter().all(|round| round.error.is_some());
                match failed {
                    Some(error) if all_failed => Err(error.into()),
                    Some(error) => self.kept(&rounds).and_then(|_| Err(error.into())),
                    None => self.kept(&rounds),
                }
            }
        }
    }
}

fn target(key: Option<&str>, id: Option<&str>) -> anyhow::Result<Unpark> {
    match (key, id) {
        (Some(key), None) => Ok(Unpark::Key(OrderingKey::new(key)?)),
        (None, Some(id)) => Ok(Unpark::Event(EventId::new(id)?)),
        _ => Err(usage("name a key, or an event by --id")),
    }
}

impl Outbox<'_> {
    fn status(&self, standings: &[Standing]) -> anyhow::Result<Exit> {
        let reports =
            || standings.iter().filter_map(|standing| Some((&standing.outbox, standing.report.as_ref()?)));
        let counts = table(
            &["OUTBOX", "DUE", "LATER", "DEAD", "PARKED KEYS", "OLDEST DUE", "MODE", "LAG BYTES"],
            standings.iter().map(cells),
        );
        let keys =
            reports().flat_map(|(outbox, report)| report.parked.iter().map(move |parked| (outbox, parked)));
        let keys: Vec<Vec<String>> = keys
            .map(|(outbox, parked)| {
                let error = parked.error.clone().unwrap_or_default();
                let ParkedKey { key, waiting, attempts, since, event_id, .. } = parked;
                let (waiting, attempts, since) =
                    (waiting.to_string(), attempts.to_string(), since.to_string());
                vec![outbox.clone(), key.clone(), waiting, attempts, since, event_id.clone(), error]
            })
            .collect();
        let header = ["OUTBOX", "PARKED KEY", "WAITING", "ATTEMPTS", "SINCE", "EVENT", "ERROR"];
        let text = if keys.is_empty() {
            counts
        } else {
            format!("{counts}\n\n{}", table(&header, keys.into_iter()))
        };
        // The first is told as it always was; scripts read it.
        self.context.output.one(&Standings { first: standings.first(), outboxes: standings }, &text)?;
        let dead = reports().any(|(_, report)| report.dead > 0);
        if dead {
            self.context.output.note("mend what was wrong, then `postrider outbox unpark KEY` (or --id ID)");
        }
        let away = standings.iter().any(|standing| standing.error.is_some());
        Ok(if dead || away { Exit::Unhealthy } else { Exit::Ok })
    }

    fn list(&self, page: &RowPage) -> anyhow::Result<Exit> {
        let (header, now) =
            (["ID", "TYPE", "KEY", "STATUS", "ATTEMPTS", "CREATED", "ERROR"], self.context.clock.now());
        self.context.output.rows(&header, &page.rows, |row| {
            vec![
                row.id.clone(),
                row.event_type.clone(),
                row.key.clone().unwrap_or_default(),
                row.status.clone(),
                row.attempts.to_string(),
                ago(row.created_at, now),
                row.last_error.clone().unwrap_or_default(),
            ]
        })?;
        if let Some(next) = page.next {
            self.context.output.note(&format!("there may be more: --before {next}"));
        }
        Ok(Exit::Ok)
    }

    fn show(&self, row: &RowView) -> anyhow::Result<Exit> {
        let time = |at: Option<jiff::Timestamp>| at.map(|at| at.to_string());
        let fields = [
            ("id", Some(row.id.clone())),
            ("type", Some(row.event_type.clone())),
            ("aggregate id", row.aggregate_id.clone()),
            ("key", row.key.clone()),
            ("tenant", row.group_id.clone()),
            ("subsidiary", row.subsidiary_id.clone()),
            ("exchange", row.exchange.clone()),
            ("routing key", row.routing_key.clone()),
            ("to queue", row.target_queue.clone()),
            ("status", Some(row.status.clone())),
            ("attempts", Some(row.attempts.to_string())),
            ("created at", time(Some(row.created_at))),
            ("available at", time(Some(row.available_at))),
            ("published at", time(row.published_at)),
            ("error", row.last_error.clone()),
            ("payload", row.payload.clone()),
        ];
        let lines = fields.into_iter().filter_map(|(name, value)| Some(format!("{name:13} {}", value?)));
        self.context.output.one(row, &lines.collect::<Vec<_>>().join("\n"))?;
        Ok(Exit::Ok)
    }

    fn freed(&self, ids: Vec<String>, dry_run: bool) -> anyhow::Result<Exit> {
        let text = ids.join("\n");
        self.context.output.one(&Freed { ids, dry_run }, &text)?;
        if dry_run {
            self.context.output.note("these would be tried again; nothing was changed");
        }
        Ok(Exit::Ok)
    }

    fn kept(&self, rounds: &[Round]) -> anyhow::Result<Exit> {
        let done = rounds.iter().filter_map(|round| Some((&round.outbox, round.kept.as_ref()?)));
        let text = table(
            &["OUTBOX", "MADE", "ENDED", "KEPT", "ARCHIVED", "REMOVED"],
            done.clone().map(|(outbox, kept)| {
                vec![
                    outbox.clone(),
                    kept.partitions_made.join(" "),
                    kept.partitions_ended.join(" "),
                    kept.partitions_kept.join(" "),
                    kept.archived.to_string(),
                    kept.removed.to_string(),
                ]
            }),
        );
        self.context.output.one(&rounds, &text)?;
        if rounds.iter().any(|round| round.dry_run) {
            self.context.output.note("this is what would be done; nothing was changed");
        }
        for Round { outbox, error, .. } in rounds.iter().filter(|round| round.kept.is_none()) {
            self.context.output.note(&match error {
                Some(error) => format!("{outbox} was not looked after: {error}"),
                None => format!("another process is looking after {outbox} now; nothing was changed"),
            });
        }
        let postponed: Vec<_> = done.flat_map(|(_, kept)| &kept.postponed).collect();
        for what in &postponed {
            self.context.output.note(&format!("not done now, tried again later: {what}"));
        }
        Ok(if postponed.is_empty() { Exit::Ok } else { Exit::Partly })
    }
}

/// What `archive` did with one outbox, or would do; nothing where another process was at it, or why it could not.
#[derive(Serialize)]
struct Round {
    outbox: String,
    dry_run: bool,
    #[serde(flatten)]
    kept: Option<Kept>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// What `status` prints.
#[derive(Serialize)]
struct Standings<'a> {
    #[serde(flatten)]
    first: Option<&'a Standing>,
    outboxes: &'a [Standing],
}

fn cells(standing: &Standing) -> Vec<String> {
    let Some(report) = &standing.report else {
        return vec![standing.outbox.clone(), standing.error.clone().unwrap_or_default()];
    };
    let OutboxReport { due, later, dead, parked_keys, oldest_due, mode, stream_lag_bytes, .. } = report;
    vec![
        standing.outbox.clone(),
        due.to_string(),
        later.to_string(),
        dead.to_string(),
        parked_keys.to_string(),
        oldest_due.map_or_else(|| "-".to_owned(), |at| at.to_string()),
        (*mode).to_owned(),
        stream_lag_bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string()),
    ]
}
