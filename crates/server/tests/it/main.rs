//! The real binary, in a folder of its own: on the embedded default, and on PostgreSQL with RabbitMQ.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod alerts;
mod audit_log;
mod bad_input;
mod canary;
mod consumers;
mod dashboard;
mod demo;
mod doctor;
mod embedded;
mod endpoints;
mod erasing;
mod grants;
mod health;
mod http;
mod idempotency;
mod ledger;
mod ledger_http;
mod ledger_proof;
mod ledger_serve;
mod migration;
mod networked;
mod openapi;
mod outbox_replay;
mod outboxes;
mod presets;
mod process;
mod progress;
mod pulling;
mod push;
mod reloading;
mod topology;
mod topology_live;
mod tracing;
mod triage;
mod upgrade;
