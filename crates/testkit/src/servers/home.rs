//! The folder that a server lives in: data, configuration, log.
//!
//! A private folder is removed with the value that owns it. A test process that is killed cannot do that, so the next one
//! to start a server sweeps up: a folder whose lock nobody holds has no owner any more.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{disk, tree, wait};

const PRIVATE: &str = "postrider-private-";

#[derive(Debug)]
pub(crate) struct Home {
    path: PathBuf,
    /// Held as long as the owner lives; the kernel lets go of it when the owner dies.
    lock: Option<File>,
}

impl Home {
    /// A new folder that ends with this value.
    pub(crate) fn private() -> Result<Self> {
        let temp = std::env::temp_dir().canonicalize()?;
        sweep(&temp);
        // Locked under a name that no sweep looks at, then renamed: there is no moment at which it seems abandoned.
        let fresh = tempfile::Builder::new().prefix(".postrider-").tempdir_in(&temp)?.keep();
        open_to_all(&fresh)?;
        let lock = File::open(&fresh)?;
        lock.lock()?;
        let unique = fresh.file_name().unwrap_or_default().to_string_lossy().replace(".postrider-", PRIVATE);
        let path = temp.join(unique);
        fs::rename(&fresh, &path)?;
        Ok(Self { path, lock: Some(lock) })
    }

    /// A folder that outlives this process; [`super::down`] removes it.
    pub(crate) fn kept(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
        open_to_all(path)?;
        Ok(Self { path: path.to_owned(), lock: None })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_private(&self) -> bool {
        self.lock.is_some()
    }

    /// A folder inside this one.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if self.is_private() {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Gives `path` and all below it to another user. For root only, to whom PostgreSQL refuses to run.
pub(crate) fn give_to(user: &str, path: &Path) -> Result<()> {
    let status = Command::new("chown").args(["-R", &format!("{user}:{user}")]).arg(path).status()?;
    ensure!(status.success(), "cannot give {} to the user {user}: is PostgreSQL installed?", path.display());
    Ok(())
}

/// Kills the servers in `folder`, removes it, and frees the shared memory that a killed PostgreSQL leaves behind.
pub(crate) fn demolish(folder: &Path) -> io::Result<()> {
    let servers = tree::servers_in(folder);
    tree::signal(&servers, Signal::KILL);
    wait::until_gone(&servers);
    free_shared_memory(&folder.join("data"));
    free_shared_memory(&folder.join("postgres/data"));
    disk::take_off(&folder.join("data"));
    fs::remove_dir_all(folder)
}

/// A PostgreSQL that was killed leaves its System V segment, of which a machine has only so many. Its id is the last word
/// in line 7 of `postmaster.pid`.
pub(crate) fn free_shared_memory(data: &Path) {
    let Ok(text) = fs::read_to_string(data.join("postmaster.pid")) else { return };
    if let Some(id) = text.lines().nth(6).and_then(|line| line.split_whitespace().last()) {
        let _ = Command::new("ipcrm").args(["-m", id]).output();
    }
}

fn sweep(temp: &Path) {
    let folders = fs::read_dir(temp).into_iter().flatten().flatten();
    for folder in folders.filter(|entry| entry.file_name().to_string_lossy().starts_with(PRIVATE)) {
        if File::open(folder.path()).is_ok_and(|lock| lock.try_lock().is_ok()) {
            let _ = demolish(&folder.path());
        }
    }
}

/// PostgreSQL runs as another user and has to pass through.
fn open_to_all(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(0o755))
}
