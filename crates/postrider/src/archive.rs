//! Archive files: what left the outbox, one JSON document a line, compressed.

mod document;
mod shelf;

pub(crate) use document::row as read_document;
pub use shelf::{Shelf, Unreadable};

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Map, Value};

use crate::envelope::{Payload, erased_note};

/// How many documents [`erase`] would change.
pub fn would_erase(
    folder: &Path,
    events: &BTreeSet<String>,
    aggregate: Option<(&str, &str)>,
) -> io::Result<u64> {
    let mut found = 0;
    for (path, _) in files(folder)? {
        for line in BufReader::new(MultiGzDecoder::new(File::open(&path)?)).lines() {
            found += u64::from(erased(&line?, events, aggregate).is_some());
        }
    }
    Ok(found)
}

/// The archive files of a folder, each with its name without the ending; none where there is no folder.
fn files(folder: &Path) -> io::Result<Vec<(PathBuf, String)>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.and_then(|name| name.strip_suffix(".jsonl.gz")).map(str::to_owned);
        files.extend(name.filter(|name| !name.starts_with('.')).map(|name| (path, name)));
    }
    Ok(files)
}

/// Puts a note in the place of payloads in the archive files of a folder: of these events, and of an entity (its type and id). A file is
/// written anew beside the old one and takes its place at the end, so that a crash leaves one or the other. Returns how many
/// documents were changed.
pub fn erase(folder: &Path, events: &BTreeSet<String>, aggregate: Option<(&str, &str)>) -> io::Result<u64> {
    let mut changed = 0;
    for (path, name) in files(folder)? {
        let mut file = ArchiveFile::create(folder, &name)?;
        let mut found = 0;
        for line in BufReader::new(MultiGzDecoder::new(File::open(&path)?)).lines() {
            let line = line?;
            match erased(&line, events, aggregate) {
                Some(erased) => {
                    found += 1;
                    file.line(&erased)?;
                }
                None => file.line(&line)?,
            }
        }
        if found > 0 {
            file.finish()?;
        } else {
            file.give_up()?;
        }
        changed += found;
    }
    Ok(changed)
}

/// The document without its payload, if it is one of these and has one still.
fn erased(line: &str, events: &BTreeSet<String>, aggregate: Option<(&str, &str)>) -> Option<String> {
    let mut row: Map<String, Value> = serde_json::from_str(line).ok()?;
    let text = |name: &str| row.get(name).and_then(Value::as_str);
    let named = |name: &str| text(name).is_some_and(|id| events.contains(id));
    let of_it = aggregate
        .is_some_and(|(kind, id)| text("aggregate_type") == Some(kind) && text("aggregate_id") == Some(id));
    if !(named("id") || named("event_id") || of_it) {
        return None;
    }
    let bytes = match (text("body").and_then(|hex| hex.strip_prefix("\\x")), row.get("payload")) {
        (Some(hex), _) => unhex(hex)?,
        (None, Some(payload)) => payload.to_string().into_bytes(),
        (None, None) => return None,
    };
    let note = erased_note(Payload::new("", bytes.clone()).hash());
    if bytes == note.as_bytes() {
        return None;
    }
    let hex = note.bytes().fold("\\x".to_owned(), |hex, byte| format!("{hex}{byte:02x}"));
    row.insert("payload".to_owned(), Value::Null);
    row.insert("body".to_owned(), Value::from(hex));
    Some(Value::Object(row).to_string())
}

fn unhex(hex: &str) -> Option<Vec<u8>> {
    let pairs = hex.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// A file that appears whole or not at all: until it is finished it has another name.
pub(crate) struct ArchiveFile {
    file: GzEncoder<BufWriter<File>>,
    temporary: PathBuf,
    path: PathBuf,
    lines: u64,
}

impl ArchiveFile {
    /// Begins a file of this name, without its ending, in a folder that is made if it is missing.
    pub(crate) fn create(folder: &Path, name: &str) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(format!("{name}.jsonl.gz"));
        let temporary = folder.join(format!(".{name}.jsonl.gz.part"));
        let file = GzEncoder::new(BufWriter::new(File::create(&temporary)?), Compression::default());
        Ok(Self { file, temporary, path, lines: 0 })
    }

    /// Adds a document.
    pub(crate) fn line(&mut self, json: &str) -> io::Result<()> {
        self.lines += 1;
        self.file.write_all(json.as_bytes())?;
        self.file.write_all(b"\n")
    }

    /// Leaves what was there before.
    fn give_up(self) -> io::Result<()> {
        drop(self.file);
        std::fs::remove_file(&self.temporary)
    }

    /// Puts it on the disk under its name. Only after this may the rows be removed.
    pub(crate) fn finish(self) -> io::Result<u64> {
        let file = self.file.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        std::fs::rename(&self.temporary, &self.path)?;
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        Ok(self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn payloads_leave_the_files_and_their_hashes_stay() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = ArchiveFile::create(folder.path(), "old").unwrap();
        file.line(r#"{"id":"1","payload":{"email":"jane@example.com"},"body":null}"#).unwrap();
        file.line(r#"{"id":"2","aggregate_type":"shop.customer","aggregate_id":"42","body":"\\x7b7d"}"#)
            .unwrap();
        file.line(r#"{"id":"3","payload":{"n":3}}"#).unwrap();
        file.finish().unwrap();
        let ids = BTreeSet::from(["1".to_owned()]);
        assert_eq!(erase(folder.path(), &ids, Some(("shop.customer", "42"))).unwrap(), 2);
        assert_eq!(erase(folder.path(), &ids, Some(("shop.customer", "42"))).unwrap(), 0, "it is done once");
        let mut text = String::new();
        let file = File::open(folder.path().join("old.jsonl.gz")).unwrap();
        flate2::read::GzDecoder::new(file).read_to_string(&mut text).unwrap();
        assert!(!text.contains("jane") && text.contains(r#"{"id":"3","payload":{"n":3}}"#), "{text}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_file_appears_when_it_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = ArchiveFile::create(folder.path(), "old").unwrap();
        file.line(r#"{"id":"1"}"#).unwrap();
        file.line(r#"{"id":"2"}"#).unwrap();
        let path = folder.path().join("old.jsonl.gz");
        assert!(!path.exists());
        assert_eq!(file.finish().unwrap(), 2);
        let mut text = String::new();
        flate2::read::GzDecoder::new(File::open(path).unwrap()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "{\"id\":\"1\"}\n{\"id\":\"2\"}\n");
    }
}
