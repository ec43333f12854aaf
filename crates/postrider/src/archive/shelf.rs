//! Archive files read back: the published events of one outbox that match, as the documents they were written as.
//!
//! Reading changes nothing, so a crash leaves everything as it was. A file that is being written has another name, and is not
//! read.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use jiff::{SignedDuration, Timestamp, civil};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::document::Moment;
use crate::store::EventFilter;

/// No partition spans more than a month.
const LONGEST_SPAN: SignedDuration = SignedDuration::from_hours(32 * 24);

/// The archive files of one outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shelf {
    folder: PathBuf,
    outbox: String,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the archive file {} cannot be read{place}: {cause}; nothing was changed. Mend it, or move it away, and try again", path.display())]
pub struct Unreadable {
    path: PathBuf,
    place: String,
    cause: Box<dyn std::error::Error + Send + Sync>,
}

/// An event of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Document {
    /// Its place in the order of the outbox.
    pub(crate) position: i64,
    /// All of it, as it was written.
    pub(crate) json: String,
}

/// What tells whether an event matches.
#[derive(Deserialize)]
struct Mark {
    position: i64,
    created_at: Moment,
    aggregate_type: String,
    event_type: String,
    group_id: Option<String>,
    verbatim: Option<IgnoredAny>,
}

impl Mark {
    /// What was sent again is no event of its own.
    fn fits(&self, filter: &EventFilter) -> bool {
        let EventFilter { aggregate_type, event_type, tenant, from, to } = filter;
        let same = |asked: &Option<String>, found: &str| asked.as_deref().is_none_or(|asked| asked == found);
        self.verbatim.is_none()
            && (*from..*to).contains(&self.created_at.0)
            && same(aggregate_type, &self.aggregate_type)
            && same(event_type, &self.event_type)
            && tenant.as_ref().is_none_or(|tenant| self.group_id.as_deref() == Some(tenant.as_str()))
    }
}

impl Shelf {
    /// The files of an outbox in a folder, which need not be there.
    pub fn new(folder: &Path, outbox: &str) -> Self {
        Self { folder: folder.to_owned(), outbox: outbox.to_owned() }
    }

    /// How many events match each of the filters, in one reading. An event that a crash left in two files counts twice here,
    /// and is sent once. Takes a thread for as long as it reads.
    pub(crate) async fn count(&self, filters: Vec<EventFilter>) -> Result<Vec<u64>, Unreadable> {
        let kept = self.clone();
        let counting = tokio::task::spawn_blocking(move || {
            let mut counts = vec![0; filters.len()];
            for file in kept.files(&filters)? {
                read(&file, |mark, _| {
                    for (count, filter) in counts.iter_mut().zip(&filters) {
                        *count += u64::from(mark.fits(filter));
                    }
                    true
                })?;
            }
            Ok(counts)
        });
        counting.await.unwrap_or_else(|stopped| Err(self.cut_off(stopped)))
    }

    /// Everything that matches, `step` documents at a time, file by file. Reading waits while nobody takes, so memory is bounded.
    pub(crate) fn search(
        &self,
        filter: EventFilter,
        step: usize,
    ) -> tokio::sync::mpsc::Receiver<Result<Vec<Document>, Unreadable>> {
        let (found, taken) = tokio::sync::mpsc::channel(2);
        let kept = self.clone();
        tokio::task::spawn_blocking(move || {
            let send = |documents| found.blocking_send(Ok(documents)).is_ok();
            let search = || {
                let mut documents = Vec::new();
                for file in kept.files(std::slice::from_ref(&filter))? {
                    let goes_on = read(&file, |mark, line| {
                        if mark.fits(&filter) {
                            documents.push(Document { position: mark.position, json: line.to_owned() });
                        }
                        documents.len() < step || send(std::mem::take(&mut documents))
                    })?;
                    if !goes_on {
                        return Ok(());
                    }
                }
                send(documents);
                Ok(())
            };
            if let Err(unreadable) = search() {
                // Whoever asked has gone: then nobody is misled.
                found.blocking_send(Err(unreadable)).unwrap_or_default();
            }
        });
        taken
    }

    /// The files that may have something for one of the filters, by their names.
    fn files(&self, filters: &[EventFilter]) -> Result<Vec<PathBuf>, Unreadable> {
        let unreadable = |cause: io::Error| Unreadable {
            path: self.folder.clone(),
            place: String::new(),
            cause: Box::new(cause),
        };
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(unreadable)?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(unreadable)?.path();
            let stem = path.file_name().and_then(|name| name.to_str()).and_then(|name| self.stem(name));
            if stem.is_some_and(|stem| filters.iter().any(|filter| may_have(stem, filter))) {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    }

    /// What follows the outbox's name: `_p20261116`, the partition that began then, or `.from` and a position, perhaps with a time after it.
    fn stem<'a>(&self, name: &'a str) -> Option<&'a str> {
        let stem = name.strip_suffix(".jsonl.gz")?.strip_prefix(self.outbox.as_str())?;
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let ours = stem.strip_prefix("_p").or_else(|| stem.strip_prefix(".from")).is_some_and(digits);
        ours.then_some(stem)
    }

    fn cut_off(&self, stopped: tokio::task::JoinError) -> Unreadable {
        Unreadable { path: self.folder.clone(), place: String::new(), cause: Box::new(stopped) }
    }
}

fn may_have(stem: &str, filter: &EventFilter) -> bool {
    let Some(day) = stem.strip_prefix("_p") else { return true };
    let began = civil::Date::strptime("%Y%m%d", day).and_then(|day| day.to_zoned(jiff::tz::TimeZone::UTC));
    let Ok(began) = began.map(|began| began.timestamp()) else { return true };
    let over = began.saturating_add(LONGEST_SPAN).unwrap_or(Timestamp::MAX);
    began < filter.to && over > filter.from
}

/// Reads a file, for as long as it is told to go on.
fn read(path: &Path, mut each: impl FnMut(&Mark, &str) -> bool) -> Result<bool, Unreadable> {
    let unreadable = |number: usize, cause: Box<dyn std::error::Error + Send + Sync>| Unreadable {
        path: path.to_owned(),
        place: if number > 0 { format!(" at line {number}") } else { String::new() },
        cause,
    };
    let file = File::open(path).map_err(|error| unreadable(0, Box::new(error)))?;
    for (index, line) in BufReader::new(MultiGzDecoder::new(BufReader::new(file))).lines().enumerate() {
        let line = line.map_err(|error| unreadable(index + 1, Box::new(error)))?;
        let mark: Mark =
            serde_json::from_str(&line).map_err(|error| unreadable(index + 1, Box::new(error)))?;
        if !each(&mark, &line) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::ArchiveFile;
    use super::*;

    fn all() -> EventFilter {
        let (from, to) = ("2026-01-01T00:00:00Z".parse().unwrap(), "2027-01-01T00:00:00Z".parse().unwrap());
        EventFilter {
            aggregate_type: Some("shop.order".to_owned()),
            event_type: None,
            tenant: None,
            from,
            to,
        }
    }

    fn line(position: i64, at: &str, kind: &str) -> String {
        format!(
            r#"{{"position":{position},"created_at":{at},"aggregate_type":"{kind}","event_type":"placed","group_id":null,"payload":{{}}}}"#
        )
    }

    fn write(folder: &Path, name: &str, lines: &[String]) {
        let mut file = ArchiveFile::create(folder, name).unwrap();
        for line in lines {
            file.line(line).unwrap();
        }
        file.finish().unwrap();
    }

    #[tokio::test]
    async fn files_of_this_outbox_alone_are_read_and_only_where_they_can_match() {
        let folder = tempfile::tempdir().unwrap();
        let march = r#""2026-03-01T12:00:00.5+00:00""#;
        write(
            folder.path(),
            "postrider.event_outbox_p20260301",
            &[line(1, march, "shop.order"), line(2, march, "shop.bill")],
        );
        write(
            folder.path(),
            "postrider.event_outbox.from00000000000000000003",
            &[line(3, "1772366400000000", "shop.order")],
        );
        write(
            folder.path(),
            "postrider.event_outbox_eu.from00000000000000000004",
            &[line(4, march, "shop.order")],
        );
        write(folder.path(), "postrider.event_outbox_p20250101", &["not read, it is too old".to_owned()]);
        let shelf = Shelf::new(folder.path(), "postrider.event_outbox");
        let none = EventFilter { to: all().from, ..all() };
        assert_eq!(shelf.count(vec![all(), none]).await.unwrap(), [2, 0]);
        let mut found = Vec::new();
        let mut search = shelf.search(all(), 1);
        while let Some(documents) = search.recv().await {
            found.extend(documents.unwrap().into_iter().map(|document| document.position));
        }
        assert_eq!(found, [3, 1]);
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_read_is_named_and_nothing_is_guessed() {
        let folder = tempfile::tempdir().unwrap();
        write(
            folder.path(),
            "event_outbox.from00000000000000000001",
            &[line(1, "0", "shop.order"), "{".to_owned()],
        );
        let shelf = Shelf::new(folder.path(), "event_outbox");
        let error = shelf.count(vec![all()]).await.unwrap_err().to_string();
        assert!(error.contains("from00000000000000000001.jsonl.gz cannot be read at line 2"), "{error}");
        let path = folder.path().join("event_outbox.from00000000000000000001.jsonl.gz");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
        assert!(shelf.count(vec![all()]).await.is_err(), "a file that was cut off");
        assert_eq!(Shelf::new(&folder.path().join("away"), "x").count(vec![all()]).await.unwrap(), [0]);
    }
}
