//! Every event a service commits reaches every service that wants it, and takes effect once.
//!
//! The modules, in the order in which an event meets them:
//!
//! 1. [`envelope`]: what travels. An [`Event`] is what a service says; an [`Envelope`] is that, committed.
//! 2. [`store`]: the database ports. `append` writes the event in the caller's own transaction.
//! 3. [`relay`]: outbox to broker. Claim, publish, wait for the confirm, mark.
//! 4. [`broker`] and [`topology`]: where it is published and how it is routed.
//! 5. [`consumer`]: delivery to effect. Transaction, inbox, [`handler`], commit.
//!    [`dedup`] spares the inbox most duplicates, and does for effects outside the database what the inbox does for those inside.
//!    [`push`] and [`pull`] hand it to services in any language.
//! 6. [`settlement`]: what becomes of the delivery: ack, wait, dead letter.
//! 7. [`dead_letter`]: what could not be handled, collected where it can be found again.
//! 8. [`operation`]: what people do with many of them: plan, run, watch, cancel. A replay is back at 3; [`triage`] has the rules
//!    that replay by schedule.
//! 9. [`audit`]: committed = applied + waiting + dead.
//!
//! [`migration`] moves consumers from an old bus to a new one, with every event on both meanwhile.
//!
//! [`progress`] follows jobs of many items to a finish line that is crossed once.
//!
//! [`runtime`] starts all of it together. [`spans`] tells tracing what became of each event.
//!
//! Backends, one folder each: [`sqlite`] and [`embedded`] on one file, [`postgres`], [`rabbitmq`] and [`redis`] in
//! production. [`harness`] tests your own handlers on the embedded ones, with time in your hand.
//!
//! # In a service
//! Each backend is a feature, all of them on by default: `sqlite` (with [`embedded`] and [`harness`]), `postgres`, `rabbitmq`, `redis`, and
//! `push`. Handlers run their SQL through sqlx 0.9, so a service names that version too:
//!
//! ```toml
//! [dependencies]
//! postrider = { git = "…", default-features = false, features = ["postgres", "rabbitmq"] }
//! sqlx = { version = "0.9", default-features = false, features = ["runtime-tokio", "postgres"] }
//!
//! [dev-dependencies]
//! postrider = { git = "…", features = ["sqlite"] } # for the harness
//! ```
//!
//! A service with a pool of its own appends in its own transactions: [`postgres::append_in`].
//!
//! It installs what it likes for logs ([`tracing`]) and figures ([`metrics`]); `docs/metrics.md` lists them.
//!
//! A future of [`Store`] that is dropped, by a time limit or because a client hung up, leaves no transaction open; a commit that is dropped
//! may have happened. sqlx's own `begin` is not like that: see [`postgres::append_in`].

#![cfg_attr(
    not(all(
        feature = "sqlite",
        feature = "postgres",
        feature = "push",
        feature = "rabbitmq",
        feature = "redis"
    )),
    allow(dead_code, unused_imports, reason = "some of what backends share is needed by one of them alone")
)]

pub mod archive;
pub mod audit;
pub mod broker;
pub mod clock;
pub mod consumer;
pub mod dead_letter;
pub mod dedup;
pub mod envelope;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod handler;
mod host;
pub mod migration;
pub mod operation;
mod passed_on;
pub mod progress;
pub mod pull;
pub mod registry;
pub mod relay;
pub mod runtime;
pub mod settlement;
pub mod spans;
pub mod store;
mod text;
pub mod topology;
pub mod triage;

#[cfg(feature = "sqlite")]
pub mod embedded;
#[cfg(feature = "sqlite")]
pub mod harness;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "push")]
pub mod push;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use broker::Broker;
pub use clock::Clock;
pub use dedup::Deduplicator;
pub use envelope::{Envelope, Event, EventId, EventType, Payload, WireFormat};
pub use handler::{BatchHandler, Failure, Handler, Incoming, OutsideHandler};
pub use registry::Registry;
pub use runtime::Runtime;
pub use settlement::RetryPolicy;
pub use store::{Inbox, Outbox, Store, StoreError};
pub use text::InvalidText;
