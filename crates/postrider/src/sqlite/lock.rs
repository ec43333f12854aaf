//! The lock that refuses a second `serve` on the same file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use crate::store::{StoreError, StoreErrorKind};

/// Held by the one process that serves a file, as a lock of the operating system on `FILE.lock`: it ends with the
/// process, however that ends, so a crash leaves nothing to clean up. Commands that only open the file do not need it.
#[derive(Debug)]
pub struct ServeLock {
    _file: File,
    path: PathBuf,
}

impl ServeLock {
    /// Takes the lock for the SQLite file at this path, or says who has it.
    pub fn acquire(path: &Path) -> Result<Self, StoreError> {
        // A link leads to the same file: there is one lock, beside the file itself.
        let file = path.canonicalize().unwrap_or_else(|_absent| path.to_owned());
        let mut name = file.into_os_string();
        name.push(".lock");
        let lock = PathBuf::from(name);
        Self::take(&lock).map_err(|error| {
            let text = format!(
                "the lock {} cannot be taken ({error}); check the folder and its rights",
                lock.display()
            );
            StoreError::new(StoreErrorKind::Unavailable, text).because(error)
        })?
    }

    /// The lock's own file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn take(lock: &Path) -> std::io::Result<Result<Self, StoreError>> {
        if let Some(folder) = lock.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(lock)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(Err(taken(&mut file, lock))),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        file.set_len(0)?;
        file.rewind()?;
        write!(file, "{}", std::process::id())?;
        file.flush()?;
        Ok(Ok(Self { _file: file, path: lock.to_owned() }))
    }
}

fn taken(file: &mut File, lock: &Path) -> StoreError {
    let mut pid = String::new();
    let _unreadable = file.read_to_string(&mut pid);
    let who = if pid.is_empty() { "another process".to_owned() } else { format!("process {}", pid.trim()) };
    let text = format!(
        "{who} serves this file already (lock {}); nothing was changed: stop it first, or choose another file",
        lock.display()
    );
    StoreError::new(StoreErrorKind::Denied, text)
}
