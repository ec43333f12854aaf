//! Corrects payloads and headers and sends them as new events: one by hand, or many by one correction.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Context as _;
use clap::Args;
use postrider::dead_letter::replay::{edit_and_replay, editable};
use postrider::dead_letter::{Correction, HeaderEdit, Misfit};
use postrider::operation::LetterPlan;
use postrider::store::{LetterId, LetterStatus, OperationKind};
use postrider::topology::QueueName;
use serde::Serialize;

use super::Context;
use super::change::{self, Which};
use crate::desk::letters::identity;
use crate::desk::operations::with_identities;
use crate::exit::{Exit, absent, usage};
use crate::wiring::{WholeStore, Wired};

#[derive(Debug, Args)]
pub(super) struct EditArgs {
    #[command(flatten)]
    which: Which,
    /// The new payload of one dead letter: text, @FILE, or - for stdin [default: opens an editor]
    #[arg(long, value_name = "TEXT|@FILE|-", group = "how")]
    data: Option<String>,
    /// A JSON Merge Patch (RFC 7396) for every dead letter that matches: text, @FILE, or - for stdin
    #[arg(long, value_name = "JSON|@FILE|-", group = "how")]
    merge: Option<String>,
    /// A JSON Patch (RFC 6902) for every dead letter that matches: text, @FILE, or - for stdin
    #[arg(long, value_name = "JSON|@FILE|-", group = "how")]
    patch: Option<String>,
    /// Sets a header of every dead letter that matches; may be repeated, and goes with --merge and --patch
    #[arg(long, value_name = "NAME=VALUE", conflicts_with = "data")]
    set_header: Vec<String>,
    /// Takes a header off every dead letter that matches; may be repeated
    #[arg(long, value_name = "NAME", conflicts_with = "data")]
    remove_header: Vec<String>,
    /// Another queue than the one each came from
    #[arg(long, value_name = "QUEUE")]
    to_queue: Option<QueueName>,
}

impl EditArgs {
    /// Whether it works on whatever matches, rather than on one letter in somebody's hands.
    pub(super) fn is_of_many(&self) -> bool {
        self.merge.is_some() || self.patch.is_some() || self.edits_headers()
    }

    fn edits_headers(&self) -> bool {
        !self.set_header.is_empty() || !self.remove_header.is_empty()
    }

    fn headers(&self) -> anyhow::Result<Option<HeaderEdit>> {
        if !self.edits_headers() {
            return Ok(None);
        }
        let mut set = BTreeMap::new();
        for one in &self.set_header {
            let unclear =
                || usage(format!("--set-header takes NAME=VALUE, not {one:?}; nothing was changed"));
            let (name, value) = one.split_once('=').ok_or_else(unclear)?;
            if set.insert(name.to_owned(), value.to_owned()).is_some() {
                return Err(usage(format!("--set-header names {name:?} twice; nothing was changed")));
            }
        }
        let edit = HeaderEdit::new(set, self.remove_header.iter().cloned().collect());
        edit.map(Some).map_err(|misfit| usage(format!("{misfit}; nothing was changed")))
    }

    fn correction(&self) -> anyhow::Result<Option<Correction>> {
        let read = |source: &str, of: fn(&str) -> Result<Correction, Misfit>| {
            let bytes = given(source)?;
            let text = std::str::from_utf8(&bytes).map_err(|_| usage("the correction is not text"))?;
            of(text).map_err(|misfit| usage(format!("{misfit}; nothing was changed")))
        };
        match (&self.merge, &self.patch) {
            (Some(source), _) => read(source, Correction::merge).map(Some),
            (None, Some(source)) => read(source, Correction::patch).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// The one letter that is edited by hand.
    fn one(&self) -> anyhow::Result<LetterId> {
        let which = &self.which;
        let many = which.all || which.limit.is_some() || which.rate.is_some() || !which.filter.is_empty();
        match which.ids[..] {
            [id] if !many && self.to_queue.is_none() => Ok(id),
            [_] => Err(usage(
                "one letter edited by hand needs its number alone; --merge, --patch and --set-header take filters, --limit, --rate and --to-queue",
            )),
            _ => Err(usage(
                "give the number of one dead letter, or --merge, --patch, --set-header or --remove-header to correct every one that matches",
            )),
        }
    }
}

#[derive(Serialize)]
struct Sent {
    id: String,
    replaces: Option<String>,
}

pub(super) async fn run<S: WholeStore>(
    args: EditArgs,
    wired: &Wired<S>,
    context: &Context,
) -> anyhow::Result<Exit> {
    if args.which.in_queue.is_some() {
        return Err(usage(
            "what is in a queue cannot be edited there; let it be collected (collect = true), or replay it",
        ));
    }
    let (edit, headers) = (args.correction()?, args.headers()?);
    if edit.is_none() && headers.is_none() {
        return by_hand(args, &wired.store, context).await;
    }
    let to_queue = args.to_queue.clone();
    let plan = LetterPlan { edit, headers, to_queue, ..args.which.plan(context)? };
    let plan = with_identities(plan, &context.config);
    change::run(OperationKind::EditLetters, &plan, &args.which, wired, context).await
}

async fn by_hand<S: WholeStore>(args: EditArgs, store: &S, context: &Context) -> anyhow::Result<Exit> {
    let id = args.one()?;
    let stored = store.letter(id).await?;
    let stored = stored.ok_or_else(|| absent(format!("there is no dead letter {id}")))?;
    if stored.summary.status != LetterStatus::Open {
        let status = stored.summary.status.as_str();
        return Err(usage(format!("dead letter {id} is {status} already; nothing was changed")));
    }
    let identity = identity(store, &context.config, &stored.letter.queue).await?;
    let before = editable(&stored, &identity);
    let was_json = serde_json::from_slice::<serde_json::Value>(&before).is_ok();
    let after = match &args.data {
        Some(data) => given(data)?,
        None => in_editor(&before, context).await?,
    };
    if after == before {
        context
            .output
            .note("nothing was edited, so nothing was sent; `postrider dlq replay` sends it as it is");
        return Ok(Exit::Declined);
    }
    if was_json && let Err(error) = serde_json::from_slice::<serde_json::Value>(&after) {
        return Err(usage(format!("the edited payload is not JSON any more: {error}; nothing was sent")));
    }
    if args.which.dry_run {
        let text = format!(
            "would send {} bytes to {} as a new event; nothing was sent",
            after.len(),
            stored.letter.queue
        );
        context.output.note(&text);
        return Ok(Exit::Ok);
    }
    context.output.confirm(&format!("Send the edited event to {}?", stored.letter.queue))?;
    let by = context.environment.actor();
    let reason = args.which.reason.as_deref();
    let new = edit_and_replay(store, &context.clock, id, &identity, after.into(), &by, reason).await?;
    let Some(new) = new else {
        return Err(usage(format!("somebody else resolved dead letter {id} meanwhile; nothing was sent")));
    };
    let sent = Sent { id: new.to_string(), replaces: stored.summary.event_id.clone() };
    context.output.one(&sent, &sent.id)?;
    Ok(Exit::Ok)
}

fn given(data: &str) -> anyhow::Result<Vec<u8>> {
    use std::io::Read as _;
    if data == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes).context("cannot read stdin")?;
        return Ok(bytes);
    }
    match data.strip_prefix('@') {
        Some(path) => std::fs::read(path).with_context(|| format!("cannot read {path}")),
        None => Ok(data.as_bytes().to_vec()),
    }
}

/// A file that is gone once nobody edits it any more, also when somebody interrupts that.
struct Edited(PathBuf);

impl Drop for Edited {
    fn drop(&mut self) {
        let _gone_already = std::fs::remove_file(&self.0);
    }
}

async fn in_editor(before: &[u8], context: &Context) -> anyhow::Result<Vec<u8>> {
    let Some(editor) = context.environment.editor() else {
        return Err(usage("neither $VISUAL nor $EDITOR is set; give the new payload by --data"));
    };
    if !std::io::stdin().is_terminal() {
        return Err(usage("there is no terminal to edit at; give the new payload by --data"));
    }
    if std::str::from_utf8(before).is_err() {
        return Err(usage("the payload is not text; write it to a file and give it by --data @FILE"));
    }
    let file = Edited(std::env::temp_dir().join(format!("postrider-edit-{}.json", context.clock.new_id())));
    let path = &file.0;
    let pretty = serde_json::from_slice::<serde_json::Value>(before)
        .ok()
        .and_then(|value| serde_json::to_vec_pretty(&value).ok());
    let shown = pretty.unwrap_or_else(|| before.to_vec());
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    // Others on this machine may not read payloads.
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(path).and_then(|mut new| std::io::Write::write_all(&mut new, &shown));
    written.with_context(|| format!("cannot write {}", path.display()))?;
    // The variable may hold arguments too, as git has it.
    let mut words = editor.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("vi"));
    command.args(words).arg(path);
    // On a thread of its own: Ctrl-C is for the editor and for us, and we wait for it and take the file away.
    let status = tokio::task::spawn_blocking(move || command.status()).await?;
    let edited = std::fs::read(path);
    let status = status.with_context(|| format!("cannot start {editor}"))?;
    if !status.success() {
        return Err(usage(format!("{editor} ended with {status}; nothing was sent")));
    }
    let edited = edited?;
    Ok(if edited == shown { before.to_vec() } else { edited })
}
