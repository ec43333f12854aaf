//! `/v1/stream`: how everything goes, once a second, as server-sent events. One look serves everybody who watches.

use std::convert::Infallible;

use axum::Router;
use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::get;
use futures_util::Stream;
use futures_util::stream::unfold;

use super::front::Front;

pub(super) fn routes() -> Router<Front> {
    Router::new().route("/stream", get(stream))
}

/// Ends when the process stops.
async fn stream(State(front): State<Front>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let seen = front.pulse.watch();
    let beats = unfold((front.pulse, seen), |(pulse, mut seen)| async move {
        loop {
            let moment = pulse.next(&mut seen).await?;
            let event = moment.now().map(|beat| Event::default().event("beat").json_data(beat));
            if let Some(Ok(event)) = event {
                return Some((Ok(event), (pulse, seen)));
            }
        }
    });
    Sse::new(beats).keep_alive(KeepAlive::default())
}
