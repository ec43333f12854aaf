//! Corrects a payload and sends it as a new event.

use std::io::IsTerminal as _;
use std::process::Command;

use anyhow::Context as _;
use clap::Args;
use postrider::dead_letter::replay::{edit_and_replay, editable};
use postrider::store::{LetterId, LetterStatus};
use serde::Serialize;

use super::Context;
use crate::desk::letters::identity;
use crate::exit::{Exit, usage};
use crate::wiring::WholeStore;

#[derive(Debug, Args)]
pub(super) struct EditArgs {
    /// The number of the dead letter
    id: LetterId,
    /// The new payload: text, @FILE, or - for stdin [default: opens an editor]
    #[arg(long, value_name = "TEXT|@FILE|-")]
    data: Option<String>,
    /// Why, for the audit log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Show what would be sent, and send nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Serialize)]
struct Sent {
    id: String,
    replaces: Option<String>,
}

pub(super) async fn run<S: WholeStore>(args: EditArgs, store: &S, context: &Context) -> anyhow::Result<Exit> {
    let id = args.id;
    let stored = store.letter(id).await?;
    let stored = stored.ok_or_else(|| usage(format!("there is no dead letter {id}")))?;
    if stored.summary.status != LetterStatus::Open {
        let status = stored.summary.status.as_str();
        return Err(usage(format!("dead letter {id} is {status} already; nothing was changed")));
    }
    let identity = identity(store, &context.config, &stored.letter.queue).await?;
    let before = editable(&stored, &identity);
    let was_json = serde_json::from_slice::<serde_json::Value>(&before).is_ok();
    let after = match &args.data {
        Some(data) => given(data)?,
        None => in_editor(&before, context)?,
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
    if args.dry_run {
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
    let reason = args.reason.as_deref();
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

fn in_editor(before: &[u8], context: &Context) -> anyhow::Result<Vec<u8>> {
    let Some(editor) = context.environment.editor() else {
        return Err(usage("neither $VISUAL nor $EDITOR is set; give the new payload by --data"));
    };
    if !std::io::stdin().is_terminal() {
        return Err(usage("there is no terminal to edit at; give the new payload by --data"));
    }
    if std::str::from_utf8(before).is_err() {
        return Err(usage("the payload is not text; write it to a file and give it by --data @FILE"));
    }
    let path = std::env::temp_dir().join(format!("postrider-edit-{}.json", context.clock.new_id()));
    let pretty = serde_json::from_slice::<serde_json::Value>(before)
        .ok()
        .and_then(|value| serde_json::to_vec_pretty(&value).ok());
    let shown = pretty.unwrap_or_else(|| before.to_vec());
    std::fs::write(&path, &shown).with_context(|| format!("cannot write {}", path.display()))?;
    // The variable may hold arguments too, as git has it.
    let mut words = editor.split_whitespace();
    let status = Command::new(words.next().unwrap_or("vi")).args(words).arg(&path).status();
    let edited = std::fs::read(&path);
    let _left_behind = std::fs::remove_file(&path);
    let status = status.with_context(|| format!("cannot start {editor}"))?;
    if !status.success() {
        return Err(usage(format!("{editor} ended with {status}; nothing was sent")));
    }
    let edited = edited?;
    Ok(if edited == shown { before.to_vec() } else { edited })
}
