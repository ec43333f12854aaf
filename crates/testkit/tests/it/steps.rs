//! A test for every step at which a process may die, on every backend.

/// `steps!(name: value, …)`: each name is a test of `embedded(value)`, and of `servers(version, value)` on both brokers.
macro_rules! steps {
    ($($name:ident: $at:expr),* $(,)?) => {
        mod on_one_file {
            #[allow(clippy::wildcard_imports, reason = "what the values are made of differs")]
            use super::*;

            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                embedded($at).await;
            })*
        }
        steps!(@on_servers Packaged: $($name: $at),*);
        steps!(@on_newer_servers Newer: $($name: $at),*);
    };
    (@$module:ident $version:ident: $($name:ident: $at:expr),*) => {
        mod $module {
            #[allow(clippy::wildcard_imports, reason = "what the values are made of differs")]
            use super::*;

            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                servers(RabbitVersion::$version, $at).await;
            })*
        }
    };
}
