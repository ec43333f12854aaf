//! Answers that last as long as somebody may see them: a stream ends when its token is revoked or expires.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::StreamExt as _;

use super::Api;
use super::access::caller;

/// Whoever watches is asked for his token again this often.
pub(crate) const AGAIN: Duration = Duration::from_secs(5);

/// The same answer, until this comes about.
pub(crate) fn until(response: Response, over: impl Future<Output = ()> + Send + 'static) -> Response {
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(over))))
}

/// Waits until this caller's token is gone.
pub(super) async fn token_gone(api: Api, peer: SocketAddr, headers: HeaderMap) {
    loop {
        api.clock.sleep(AGAIN).await;
        let asked = caller(&api, peer, &headers).await;
        if asked.is_err_and(|problem| problem.code() == "unauthenticated") {
            return;
        }
    }
}
