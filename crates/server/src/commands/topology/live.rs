//! What the commands that ask a broker share.

use std::borrow::Cow;

use postrider::migration::Standing;
use postrider::rabbitmq::Operator;
use postrider::topology::{Layout, VhostName};

use super::super::Context;
use super::Which;
use crate::config::Backends;
use crate::exit::{Exit, usage};
use crate::old_buses;
use crate::wiring::{self, OnStore, WholeStore, Wired};

/// The layout as a broker should have it: the configuration's comes without the old buses that a finished migration removed.
pub(super) async fn layout<'a>(which: &Which, context: &'a Context) -> anyhow::Result<Cow<'a, Layout>> {
    let mut layout = which.layout(context)?;
    if which.preset.is_some() || !matches!(context.config.backends, Backends::Networked { .. }) {
        return Ok(layout);
    }
    let mut standings = Vec::new();
    // A topology may be applied before there is a database, and then nothing was removed.
    if let Err(error) = wiring::open(context, Migrations(&mut standings)).await {
        context
            .output
            .note(&format!("warning: whether a migration removed an old bus is not known: {error:#}"));
    }
    let wanted = old_buses::without_removed(&layout.topology, &standings);
    if wanted != layout.topology {
        layout.to_mut().topology = wanted;
    }
    Ok(layout)
}

/// Where every migration stands, on whatever store.
struct Migrations<'a>(&'a mut Vec<Standing>);

impl OnStore for Migrations<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        *self.0 = wired.store.migrations_of_buses().await?;
        Ok(Exit::Ok)
    }
}

/// The broker's topology, or why there is none to look at.
pub(super) fn operator(context: &Context, vhost: Option<&VhostName>) -> anyhow::Result<Operator> {
    wiring::operator(context, vhost)?.ok_or_else(|| {
        usage(
            "this looks at a running RabbitMQ, and none is configured; set RABBITMQ_URL (broker.url). The embedded broker \
             always has what the configuration says",
        )
    })
}
