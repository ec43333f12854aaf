//! What the commands that ask a broker share.

use std::borrow::Cow;

use postrider::migration::Standing;
use postrider::rabbitmq::Operator;
use postrider::store::StoredSubscription;
use postrider::topology::{Layout, VhostName};

use super::super::Context;
use super::Which;
use crate::config::Backends;
use crate::exit::{Exit, usage};
use crate::old_buses;
use crate::wiring::{self, OnStore, WholeStore, Wired};

/// The layout as a broker should have it: the configuration's comes without the old buses that a finished migration removed, and with the
/// queues of push subscriptions that were made since.
pub(super) async fn layout<'a>(which: &Which, context: &'a Context) -> anyhow::Result<Cow<'a, Layout>> {
    let mut layout = which.layout(context)?;
    let has_store = match &context.config.backends {
        Backends::Networked { .. } => true,
        Backends::Embedded { path } => path.exists(),
        Backends::BrokerAlone { .. } => false,
    };
    if which.preset.is_some() || !has_store {
        return Ok(layout);
    }
    let mut known = Known::default();
    // A topology may be applied before there is a database, and then nothing was removed or made.
    if let Err(error) = wiring::open(context, &mut known).await {
        context.output.note(&format!(
            "warning: whether a migration removed an old bus, and which push subscriptions there are, is not known: {error:#}"
        ));
    }
    if !known.subscriptions.is_empty() {
        *layout.to_mut() = context.config.layout_with(&known.subscriptions);
    }
    let wanted = old_buses::without_removed(&layout.topology, &known.standings);
    if wanted != layout.topology {
        layout.to_mut().topology = wanted;
    }
    Ok(layout)
}

/// What the store knows of the topology, on whatever store.
#[derive(Default)]
struct Known {
    standings: Vec<Standing>,
    subscriptions: Vec<StoredSubscription>,
}

impl OnStore for &mut Known {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        self.standings = wired.store.migrations_of_buses().await?;
        self.subscriptions = wired.store.subscriptions().await?;
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
