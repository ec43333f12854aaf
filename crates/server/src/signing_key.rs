//! The key that signs checkpoints of the ledger, in a file of its own.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use postrider::Clock;
use postrider::envelope::hex;
use postrider_ledger::chain::Hash;
use postrider_ledger::checkpoint::Key;

/// The key of the file, and whether it was made just now. A file that is absent is made, readable by its owner alone; one that cannot be
/// read is never replaced.
pub(crate) fn load_or_make(path: &Path, clock: &Clock) -> anyhow::Result<(Key, bool)> {
    match std::fs::read_to_string(path) {
        Ok(text) => {
            let seed = Hash::from_hex(text.trim()).with_context(|| {
                format!("{} does not hold a key of 64 hexadecimal digits", path.display())
            })?;
            Ok((Key::from_seed(seed.0), false))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let seed = clock.secret();
            write_secret(path, &hex(&seed))
                .with_context(|| format!("cannot write the key {}", path.display()))?;
            Ok((Key::from_seed(seed), true))
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
