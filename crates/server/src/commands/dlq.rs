//! `postrider dlq`: finds dead letters, and says what becomes of them.

mod change;
mod edit;
mod filter;
mod in_queue;
mod list;
mod show;
mod transfer;

pub(crate) use filter::since;

use clap::{Args, Subcommand};
use postrider::store::LetterId;
use postrider::topology::QueueName;

use super::Context;
use crate::exit::{Exit, usage};
use crate::wiring::{OnStore, WholeStore, Wired};

/// What to do with dead letters.
#[derive(Debug, Args)]
#[command(
    after_help = "Begin with the groups, mend what was wrong, try a few, then send the rest again:\n  \
    postrider dlq groups\n  \
    postrider dlq ls --group 3f2a9c41d07be855\n  \
    postrider dlq show 42\n  \
    postrider dlq replay --group 3f2a9c41d07be855 --limit 5\n  \
    postrider dlq replay --group 3f2a9c41d07be855"
)]
pub(crate) struct DlqArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// What failed for the same reason, with counts over time: the place to begin
    #[command(after_help = "Examples:\n  \
        postrider dlq groups\n  \
        postrider dlq groups --queue billing --hours 48")]
    Groups(list::GroupsArgs),
    /// List dead letters, the newest first
    #[command(after_help = "Examples:\n  \
        postrider dlq ls --group 3f2a9c41d07be855\n  \
        postrider dlq ls --text 'no such account' --since 2d\n\n\
        A filter that no index answers (text, tenant, aggregate, …) looks at 20000 letters at a time and says where it \
        stopped; --before goes on from there.")]
    Ls(list::LsArgs),
    /// Show one dead letter: its payload, its headers, what is known of its attempts
    Show {
        /// Its number, as `postrider dlq ls` shows it; with --in-queue the id of its event
        id: String,
        /// Look into the dead-letter queue of this queue itself, where it is not collected
        #[arg(long, value_name = "QUEUE")]
        in_queue: Option<QueueName>,
    },
    /// Send dead letters again, each to the queue it came from
    #[command(after_help = "Examples:\n  \
        postrider dlq replay 42\n  \
        postrider dlq replay --group 3f2a9c41d07be855 --limit 5      a canary first\n  \
        postrider dlq replay --group 3f2a9c41d07be855 --rate 100\n\n\
        Each goes back through the outbox, to its own queue alone, with a fresh budget of attempts; the inbox knows what was \
        applied before. Ctrl-C detaches: whoever serves goes on with it.")]
    Replay(change::ReplayArgs),
    /// Mark dead letters as not wanted; they stay in the table
    #[command(
        after_help = "Example:\n  postrider dlq discard --type shop.order.test --until 1h --reason 'test data'"
    )]
    Discard(change::DiscardArgs),
    /// Correct payloads and send them as new events, each of which names the one it replaces
    #[command(after_help = "Examples:\n  \
        postrider dlq edit 42                                             opens $VISUAL or $EDITOR\n  \
        postrider dlq edit 42 --data @mended.json\n  \
        postrider dlq edit --group 3f2a9c41d07be855 --merge '{\"currency\": \"EUR\"}' --dry-run\n  \
        postrider dlq edit --type shop.order.placed --patch @fix.json --limit 5\n\n\
        A correction is tried on some of them first; the plan shows one payload before and after it. What it does not fit (a \
        `test` that fails, no JSON) stays open: `postrider ops get` names it, the rest go on.")]
    Edit(Box<edit::EditArgs>),
    /// Write dead letters as JSON lines, byte for byte
    Export(transfer::ExportArgs),
    /// Read dead letters that were exported; what is known already stays as it is
    Import(transfer::ImportArgs),
}

impl DlqArgs {
    /// Whether Ctrl-C detaches from it rather than cutting it off.
    pub(crate) fn detaches(&self) -> bool {
        match &self.what {
            What::Replay(_) | What::Discard(_) => true,
            What::Edit(args) => args.is_of_many(),
            _ => false,
        }
    }
}

/// The command, on a store.
pub(crate) struct Dlq<'a> {
    pub(crate) args: DlqArgs,
    pub(crate) context: &'a Context,
}

impl OnStore for Dlq<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        wired.store.check().await?;
        let context = self.context;
        match self.args.what {
            What::Groups(args) if args.in_queue.is_some() => in_queue::groups(args, &wired, context).await,
            What::Groups(args) => list::groups(args, &wired.store, context).await,
            What::Ls(args) if args.in_queue.is_some() => in_queue::ls(args, &wired, context).await,
            What::Ls(args) => list::ls(args, &wired.store, context).await,
            What::Show { id, in_queue: Some(queue) } => in_queue::show(&queue, &id, &wired, context).await,
            What::Show { id, in_queue: None } => {
                let no_number =
                    |_| usage(format!("{id:?} is no number of a dead letter; `postrider dlq ls` lists them"));
                show::run(id.parse::<LetterId>().map_err(no_number)?, &wired.store, context).await
            }
            What::Replay(args) => change::replay(args, &wired, context).await,
            What::Discard(args) => change::discard(args, &wired, context).await,
            What::Edit(args) => edit::run(*args, &wired, context).await,
            What::Export(args) => transfer::export(args, &wired.store, context).await,
            What::Import(args) => transfer::import(args, &wired.store, context).await,
        }
    }
}
