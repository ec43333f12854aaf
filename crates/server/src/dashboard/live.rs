//! The part of the overview that lives: drawn once for everybody who watches, and sent as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::{Notify, watch};

use super::visit::Visit;
use super::{Dashboard, Oops, pages};
use crate::desk::pulse::Pulse;

/// Who draws.
pub(super) struct Live {
    drawn: watch::Sender<Arc<str>>,
    opened: Notify,
}

impl Live {
    /// Draws while somebody watches, until the process stops.
    pub(super) fn start(pulse: Arc<Pulse>) -> Arc<Self> {
        let live = Arc::new(Self { drawn: watch::Sender::new(Arc::from("")), opened: Notify::new() });
        let drawing = live.clone();
        tokio::spawn(async move {
            // Without somebody who looks it does not watch either, or the pulse would never rest.
            while pulse.until_stopped(drawing.opened.notified()).await.is_some() {
                let mut seen = pulse.watch();
                while drawing.drawn.receiver_count() > 0 {
                    let Some(moment) = pulse.next(&mut seen).await else { return };
                    // A carriage return would end a line of the stream.
                    let picture = pages::overview::live(&moment).into_string().replace('\r', " ");
                    drawing.drawn.send_replace(picture.into());
                }
            }
        });
        live
    }
}

/// `GET /dashboard/stream`
pub(super) async fn stream(
    State(dashboard): State<Dashboard>,
    Extension(visit): Extension<Visit>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Oops> {
    visit.sees_all()?;
    let drawn = dashboard.live.drawn.subscribe();
    dashboard.live.opened.notify_one();
    let stop = dashboard.front.pulse.clone();
    let pictures = unfold((drawn, stop), |(mut drawn, pulse)| async move {
        pulse.until_stopped(drawn.changed()).await?.ok()?;
        let picture = drawn.borrow_and_update().clone();
        Some((Ok(Event::default().event("live").data(picture.as_ref())), (drawn, pulse)))
    });
    Ok(Sse::new(pictures).keep_alive(KeepAlive::default()))
}
