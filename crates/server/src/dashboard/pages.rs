//! The pages, one file each.

pub(super) mod audit_log;
pub(super) mod consumers;
pub(super) mod correction;
pub(super) mod event;
pub(super) mod events;
pub(super) mod failures;
pub(super) mod jobs;
pub(super) mod ledger;
pub(super) mod letter;
pub(super) mod migration;
pub(super) mod operations;
pub(super) mod outbox;
pub(super) mod overview;
pub(super) mod plan;
pub(super) mod push;
pub(super) mod tokens;
pub(super) mod topology;

use axum::extract::{Extension, State};

use super::Dashboard;
use super::visit::Visit;

/// What every page is given.
type Here = State<Dashboard>;
type Who = Extension<Visit>;
