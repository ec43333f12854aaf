//! What the commands that ask a broker share.

use postrider::rabbitmq::Operator;
use postrider::topology::VhostName;

use super::super::Context;
use crate::exit::usage;
use crate::wiring;

/// The broker's topology, or why there is none to look at.
pub(super) fn operator(context: &Context, vhost: Option<&VhostName>) -> anyhow::Result<Operator> {
    wiring::operator(context, vhost)?.ok_or_else(|| {
        usage(
            "this looks at a running RabbitMQ, and none is configured; set RABBITMQ_URL (broker.url). The embedded broker \
             always has what the configuration says",
        )
    })
}
