//! `postrider ledger checkpoint` and `proof`: signed roots, and entries proved by them.

use anyhow::Context as _;
use clap::Args;
use postrider::envelope::hex;
use postrider_ledger::LedgerError;
use postrider_ledger::books::Books;
use postrider_ledger::refusal::Refusal;

use super::Desk;
use crate::exit::Exit;
use crate::signing_key;

/// How.
#[derive(Debug, Args)]
#[command(
    after_help = "Signs with the key in ledger.signing_key_file, which is made if it is absent. Keep a copy of the key and of the \
    public key: who has only the public key can check every checkpoint."
)]
pub(crate) struct CheckpointArgs {
    /// Say which entries would be signed, and sign nothing
    #[arg(long)]
    dry_run: bool,
}

/// Which entry.
#[derive(Debug, Args)]
#[command(
    after_help = "Hash the entry's hash with the hashes of the path, from the bottom up, and compare with the root:\n\
    leaf = SHA-256(00, hash), node = SHA-256(01, left, right). Exit code 3 if no checkpoint has the entry yet."
)]
pub(crate) struct ProofArgs {
    /// Its number
    entry: u64,
}

pub(super) async fn checkpoint<B: Books>(args: &CheckpointArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    if args.dry_run {
        let told = match desk.ledger.unsigned(&tenant).await? {
            None => "there are no entries since the last checkpoint".to_owned(),
            Some((first, last)) => {
                format!("entries {first} to {last} would be signed; nothing was changed")
            }
        };
        desk.context.output.note(&told);
        return Ok(Exit::Ok);
    }
    let file = &desk.context.config.settings.ledger.signing_key_file;
    let (key, made) = signing_key::load_or_make(file, &desk.context.clock)?;
    if made {
        let public = hex(&key.public());
        let text = format!("made a signing key in {}; keep a copy. Public key: {public}", file.display());
        desk.context.output.note(&text);
    }
    match desk.ledger.checkpoint(&tenant, &key).await? {
        None => desk.context.output.note("there are no entries since the last checkpoint"),
        Some(made) => {
            let text = format!("entries {} to {} have the root {}", made.first, made.last, made.root);
            desk.context.output.one(&made, &text)?;
            desk.context.output.note(&format!("signed by {}", hex(&made.public_key)));
        }
    }
    Ok(Exit::Ok)
}

pub(super) async fn proof<B: Books>(args: &ProofArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let head = desk.ledger.books().head(&tenant).await?;
    let newest = head.with_context(|| format!("{tenant} keeps no books here"))?.number;
    if !(1..=newest).contains(&args.entry) {
        return Err(LedgerError::from(Refusal::UnknownEntry(args.entry)).into());
    }
    let Some(proven) = desk.ledger.prove(&tenant, args.entry).await? else {
        desk.context.output.note(&format!(
            "no checkpoint has entry {} yet; make one: postrider ledger checkpoint",
            args.entry
        ));
        return Ok(Exit::Unhealthy);
    };
    let document = proven.document(&tenant, args.entry);
    desk.context.output.one(&document, &serde_json::to_string_pretty(&document)?)?;
    if !proven.is_trusted {
        let signer = hex(&proven.checkpoint.public_key);
        desk.context.output.note(&format!("it is signed by {signer}, which is none of ledger.trusted_keys"));
    }
    Ok(if proven.holds(&tenant) { Exit::Ok } else { Exit::Unhealthy })
}
