//! Which RabbitMQ a test runs on: the one that the machine's packages give, or a newer one beside it.
//!
//! The newer one is a folder of unpacked packages (`scripts/install-rabbitmq4`), libraries and all. Its programs run in a
//! mount namespace of their own, in which its `usr` stands in for the machine's. Everything else is the machine's: data
//! folders have the same paths inside and outside, the program keeps the process id that was started, and the mount ends
//! with the last process that sees it.
#![allow(clippy::disallowed_methods)] // the environment says where the newer one is, as it does for the script

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use rustix::process::geteuid;

use crate::servers::process;

/// Not the programs that are on the PATH: Debian's change the user and look at the machine's own configuration.
const PROGRAMS: [&str; 2] = ["/usr/lib/rabbitmq/bin", "/usr/local/sbin"];
const IN_OTHER_USR: &str =
    r#"mount --bind "$0" /usr && PATH=/usr/lib/rabbitmq/bin:/usr/bin && export PATH && exec "$@""#;

/// The versions that tests are run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RabbitVersion {
    /// What the machine's packages give: 3.10 on Debian 12.
    Packaged,
    /// RabbitMQ 4.x. Absent where `scripts/install-rabbitmq4` could not make it, and then a test that wants it fails.
    Newer,
}

impl RabbitVersion {
    /// Whether it can be started here.
    pub fn is_installed(self) -> bool {
        match self {
            Self::Packaged => true,
            Self::Newer => newer_usr().is_ok_and(|usr| usr.exists()),
        }
    }

    /// How to run one of its programs: what to start, and the arguments that go before the program's own.
    pub(super) fn program(self, name: &str) -> Result<(PathBuf, Vec<OsString>)> {
        if self == Self::Packaged {
            return Ok((process::find_program(name, &PROGRAMS.map(Into::into)), Vec::new()));
        }
        let usr = newer_usr()?;
        ensure!(
            self.is_installed(),
            "RabbitMQ 4.x is not in {}: run scripts/install-rabbitmq4",
            usr.parent().unwrap_or(&usr).display()
        );
        let mut args: Vec<OsString> = vec!["--mount".into()];
        if !geteuid().is_root() {
            // In a user namespace anybody may mount. Files are still made as the user.
            args.push("--map-root-user".into());
        }
        args.extend(["sh", "-c", IN_OTHER_USR].map(Into::into));
        args.extend([usr.into(), name.into()]);
        Ok(("unshare".into(), args))
    }
}

/// The same rule as in `scripts/install-rabbitmq4`.
fn newer_usr() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let folder = set("POSTRIDER_RABBITMQ4").or_else(|| Some(cache()?.join("postrider/rabbitmq4")));
    Ok(folder.context("neither HOME nor POSTRIDER_RABBITMQ4 is set")?.join("usr"))
}

/// One test per case and version: `packaged::CASE` and `newer::CASE`. A case is a function that takes the version.
#[macro_export]
macro_rules! on_each_rabbitmq {
    ($($case:ident),+ $(,)?) => {
        $crate::on_each_rabbitmq!(@packaged Packaged: $($case),+);
        $crate::on_each_rabbitmq!(@newer Newer: $($case),+);
    };
    (@$module:ident $version:ident: $($case:ident),+) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    let ended = super::$case($crate::servers::RabbitVersion::$version).await;
                    let code = std::process::Termination::report(ended);
                    assert_eq!(code, std::process::ExitCode::SUCCESS);
                }
            )+
        }
    };
}
