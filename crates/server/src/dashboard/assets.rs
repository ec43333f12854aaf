//! The looks and the little script, compiled in.

use axum::http::header;
use axum::response::IntoResponse;

const STYLE: &str = include_str!("assets/style.css");
const SCRIPT: &str = include_str!("assets/script.js");
const ICON: &str = include_str!("assets/icon.svg");
/// They change with the binary; browsers ask again after a while.
const KEPT: (header::HeaderName, &str) = (header::CACHE_CONTROL, "private, max-age=60");

pub(super) async fn style() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/css; charset=utf-8"), KEPT], STYLE)
}

pub(super) async fn script() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8"), KEPT], SCRIPT)
}

pub(super) async fn icon() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "image/svg+xml"), KEPT], ICON)
}
