//! Archive files: what left the outbox, one JSON document a line, compressed.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

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
