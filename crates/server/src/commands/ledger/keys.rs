//! `postrider ledger checkpoint` and `proof`: signed roots, and entries proved by them.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use clap::Args;
use postrider_ledger::books::Books;
use postrider_ledger::checkpoint::{Checkpoint, Key};
use serde_json::{Value, json};

use super::Desk;
use crate::exit::Exit;

/// It takes nothing of its own.
#[derive(Debug, Args)]
#[command(
    after_help = "Signs with the key in ledger.signing_key_file, which is made if it is absent. Keep a copy of the key and of the\n\
    public key: who has only the public key can check every checkpoint."
)]
pub(crate) struct CheckpointArgs {}

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

pub(super) async fn checkpoint<B: Books>(_args: &CheckpointArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let key = load_or_make(&desk.context.config.settings.ledger.signing_key_file, desk)?;
    match desk.ledger.checkpoint(&tenant, &key).await? {
        None => desk.context.output.note("there are no entries since the last checkpoint"),
        Some(made) => {
            let text = format!("entries {} to {} have the root {}", made.first, made.last, made.root);
            desk.context.output.one(&shown(&made), &text)?;
            desk.context.output.note(&format!("signed by {}", hex(&made.public_key)));
        }
    }
    Ok(Exit::Ok)
}

pub(super) async fn proof<B: Books>(args: &ProofArgs, desk: &Desk<'_, B>) -> anyhow::Result<Exit> {
    let tenant = desk.tenant().await?;
    let Some(proven) = desk.ledger.prove(&tenant, args.entry).await? else {
        desk.context.output.note(&format!(
            "no checkpoint has entry {} yet; make one: postrider ledger checkpoint",
            args.entry
        ));
        return Ok(Exit::Unhealthy);
    };
    let holds =
        proven.proof.root(&proven.hash) == proven.checkpoint.root && proven.checkpoint.is_signed(&tenant);
    let path: Vec<Value> =
        proven.proof.path.iter().map(|(left, hash)| json!({"left": left, "hash": hash})).collect();
    let document = json!({
        "tenant": tenant.as_str(),
        "entry": args.entry.to_string(),
        "hash": proven.hash,
        "path": path,
        "checkpoint": shown(&proven.checkpoint),
        "holds": holds,
    });
    desk.context.output.one(&document, &serde_json::to_string_pretty(&document)?)?;
    Ok(if holds { Exit::Ok } else { Exit::Unhealthy })
}

fn shown(checkpoint: &Checkpoint) -> Value {
    json!({
        "first": checkpoint.first.to_string(),
        "last": checkpoint.last.to_string(),
        "root": checkpoint.root,
        "head": checkpoint.head,
        "madeAt": checkpoint.made_at,
        "publicKey": hex(&checkpoint.public_key),
        "signature": hex(&checkpoint.signature),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"))
}

/// The key of the file. A file that is absent is made, readable by its owner alone; one that cannot be read is never replaced.
fn load_or_make<B>(path: &Path, desk: &Desk<'_, B>) -> anyhow::Result<Key> {
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let hash = postrider_ledger::chain::Hash::from_hex(text.trim());
            let seed = hash.with_context(|| {
                format!("{} does not hold a key of 64 hexadecimal digits", path.display())
            })?;
            Ok(Key::from_seed(seed.0))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let seed = desk.context.clock.secret();
            write_secret(path, &hex(&seed))
                .with_context(|| format!("cannot write the key {}", path.display()))?;
            let key = Key::from_seed(seed);
            desk.context.output.note(&format!(
                "made a signing key in {}; keep a copy. Public key: {}",
                path.display(),
                hex(&key.public())
            ));
            Ok(key)
        }
        Err(error) => Err(error).with_context(|| format!("cannot read the key {}", path.display())),
    }
}

fn write_secret(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    writeln!(file, "{text}")?;
    file.sync_all()
}
