//! A disk of one's own that can be full: a file system in memory whose size is set anew while it is in use. Root only.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// Taken off with this value.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    path: PathBuf,
    megabytes: u64,
}

impl SmallDisk {
    /// Lays a disk of this size over the folder. It takes memory for what is written, not for its size.
    pub(crate) fn over(path: &Path, megabytes: u64) -> Result<Self> {
        let disk = Self { path: path.to_owned(), megabytes };
        let size = format!("size={megabytes}m");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "postrider-disk"]).arg(path))
            .context("a small disk needs root, and the right to mount")?;
        Ok(disk)
    }

    /// From now on nothing more fits.
    pub(crate) fn fill(&self) -> Result<u64> {
        let shown = run(Command::new("df").args(["--output=used", "-k"]).arg(&self.path))?;
        let used: u64 = shown.lines().last().unwrap_or_default().trim().parse().context("df says no size")?;
        // What is written while we look may take a little more than this already.
        let mut spare = 64;
        while let Err(error) = self.resize(&format!("{}k", used + spare)) {
            ensure!(spare < 1 << 16, error);
            spare *= 2;
        }
        Ok(used)
    }

    /// There is room again.
    pub(crate) fn free(&self) -> Result<()> {
        self.resize(&format!("{}m", self.megabytes))
    }

    fn resize(&self, size: &str) -> Result<()> {
        let size = format!("remount,size={size}");
        run(Command::new("mount").args(["-o", &size]).arg(&self.path)).map(drop)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        take_off(&self.path);
    }
}

/// Takes off the disk over this folder, if there is one.
pub(crate) fn take_off(path: &Path) {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let is_ours = |line: &str| line.starts_with("postrider-disk ") && line.split(' ').nth(1) == path.to_str();
    if mounts.lines().any(is_ours) {
        let _ = Command::new("umount").arg("--lazy").arg(path).output();
    }
}

fn run(command: &mut Command) -> Result<String> {
    let ran =
        command.output().with_context(|| format!("{} cannot be run", command.get_program().display()))?;
    ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr).trim());
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}
