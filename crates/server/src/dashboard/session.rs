//! Who comes in: by pasting a token, or as the owner of a machine where there is none. And what every answer is sent with.
//!
//! A session lives in this process alone and ends with it. The cookie holds a random number; the token itself is asked for at every
//! request, so one that is revoked opens nothing any more.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Bytes, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Redirect, Response};
use postrider::Clock;
use postrider::store::TokenHash;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq as _;

use super::search::Search;
use super::trouble::{self, unless_away};
use super::visit::Visit;
use super::{Dashboard, frame};
use crate::api::{Caller, Code, Problem, lasting, owner, plain_refusal, with_token};
use crate::config::Tls;

const COOKIE: &str = "postrider_session";
/// What lasts longer than an answer.
const STREAM: &str = "/dashboard/stream";
/// A session lasts so long.
const LASTS: Duration = Duration::from_hours(12);
/// So many at most; the oldest is forgotten first.
const MOST: usize = 1000;
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Who is in.
pub(super) struct Sessions {
    clock: Clock,
    /// What the owner of the machine proves forms with.
    own_proof: String,
    by_id: Mutex<HashMap<[u8; 32], Session>>,
}

#[derive(Clone)]
struct Session {
    token: TokenHash,
    proof: String,
    until: Duration,
}

impl Sessions {
    pub(super) fn new(clock: Clock) -> Self {
        Self { own_proof: random(&clock), clock, by_id: Mutex::default() }
    }

    /// A new session for who has this token; what its cookie says.
    fn begin(&self, token: TokenHash) -> String {
        let (id, now) = (random(&self.clock), self.clock.monotonic());
        let mut sessions = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.retain(|_, session| session.until > now);
        if sessions.len() >= MOST {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.until).map(|(id, _)| *id);
            oldest.and_then(|id| sessions.remove(&id));
        }
        sessions.insert(digest(&id), Session { token, proof: random(&self.clock), until: now + LASTS });
        id
    }

    fn find(&self, headers: &HeaderMap) -> Option<Session> {
        let sessions = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.get(&digest(cookie(headers)?))?;
        (session.until > self.clock.monotonic()).then(|| session.clone())
    }

    fn end(&self, headers: &HeaderMap) {
        if let Some(id) = cookie(headers) {
            self.by_id.lock().unwrap_or_else(PoisonError::into_inner).remove(&digest(id));
        }
    }
}

fn random(clock: &Clock) -> String {
    clock.secret().iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn digest(id: &str) -> [u8; 32] {
    Sha256::digest(id.as_bytes()).into()
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

/// Finds out who it is, or sends them to the way in. A form without its proof changes nothing.
pub(super) async fn known(
    State(dashboard): State<Dashboard>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    let headers = parts.headers.clone();
    let path = parts.uri.path().to_owned();
    let (caller, proof) = match unless_away(&dashboard.api, who(&dashboard, peer, &parts.headers)).await {
        Ok(Some(known)) => known,
        Ok(None) if parts.method == Method::GET => {
            let here = parts.uri.path_and_query().map_or("", |at| at.as_str());
            let to = Search::default().with("to", Some(here)).at("/dashboard/login");
            return Redirect::to(&to).into_response();
        }
        Ok(None) => return Redirect::to("/dashboard/login").into_response(),
        Err(problem) => return safe(trouble::page(&dashboard, None, &problem)),
    };
    let mut visit = Visit {
        caller,
        proof,
        read_only: dashboard.api.http().read_only,
        fields: Arc::default(),
        now: dashboard.api.clock.now(),
        path,
        backend: dashboard.backend.clone(),
    };
    if let Err(problem) = dashboard.api.paced(&visit.caller, peer) {
        return safe(trouble::page(&dashboard, Some(&visit), &problem));
    }
    let mut request = Request::from_parts(parts, axum::body::Body::empty());
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let fields = to_bytes(body, dashboard.api.http().max_body_bytes).await.map(|body| fields(&body));
        let fields = fields.unwrap_or_default();
        let given = fields.get("proof").map_or("", String::as_str);
        if !bool::from(given.as_bytes().ct_eq(visit.proof.as_bytes())) {
            let told = "this form did not come from a page of yours, or the page is too old; nothing was changed. \
                Go back, reload the page, and try again";
            return safe(trouble::page(&dashboard, Some(&visit), &Problem::new(Code::Forbidden, told)));
        }
        visit.fields = Arc::new(fields);
    }
    request.extensions_mut().insert(visit.clone());
    let answered = trouble::answer(&dashboard.api, request, next).await;
    let page = |problem: Problem| trouble::page(&dashboard, Some(&visit), &problem);
    let mut response = answered.unwrap_or_else(page);
    if visit.path == STREAM {
        response = lasting::until(response, visitor_gone(dashboard.clone(), peer, headers));
    }
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        return safe(page(problem));
    }
    safe(plain_refusal(response).await.map_or_else(|response| response, page))
}

/// Waits until a visitor is let in no more: his token is gone, or his session over.
async fn visitor_gone(dashboard: Dashboard, peer: SocketAddr, headers: HeaderMap) {
    loop {
        dashboard.api.clock.sleep(lasting::AGAIN).await;
        // A store that cannot be asked is no answer.
        if matches!(who(&dashboard, peer, &headers).await, Ok(None)) {
            return;
        }
    }
}

fn fields(body: &[u8]) -> BTreeMap<String, String> {
    url::form_urlencoded::parse(body).into_owned().collect()
}

/// By a session, or by owning the machine; with what proves a form.
async fn who(
    dashboard: &Dashboard,
    peer: SocketAddr,
    headers: &HeaderMap,
) -> Result<Option<(Caller, String)>, Problem> {
    if let Some(session) = dashboard.sessions.find(headers) {
        let caller = with_token(&dashboard.api, &session.token).await?;
        return Ok(caller.map(|caller| (caller, session.proof)));
    }
    let owner = owner(&dashboard.api, peer, headers).await?;
    Ok(owner.map(|owner| (owner, dashboard.sessions.own_proof.clone())))
}

/// What every answer is sent with: nothing from elsewhere, nothing inline, nothing kept.
fn safe(response: impl IntoResponse) -> Response {
    let mut response = response.into_response();
    let headers = response.headers_mut();
    let all = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in all {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// The same for what anybody may ask.
pub(super) async fn guarded(request: Request, next: Next) -> Response {
    safe(next.run(request).await)
}

/// The way in.
pub(super) async fn ask(search: Search) -> Html<String> {
    Html(frame::login(search.get("to").unwrap_or("/dashboard"), None).into_string())
}

pub(super) async fn enter(
    State(dashboard): State<Dashboard>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if let Some(problem) = from_elsewhere(&dashboard, &headers) {
        return trouble::page(&dashboard, None, &problem);
    }
    let given = fields(&body);
    let field = |name: &str| given.get(name).map_or("", String::as_str);
    let (token, to) = (field("token"), field("to"));
    let nobody = Caller { role: postrider::store::TokenRole::Metrics, tenant: None, token: None };
    if let Err(problem) = dashboard.api.paced(&nobody, peer) {
        return trouble::page(&dashboard, None, &problem);
    }
    let hash = TokenHash::of(token.trim());
    let told = match unless_away(&dashboard.api, with_token(&dashboard.api, &hash)).await {
        Ok(Some(caller)) if caller.role.allows(postrider::store::TokenRole::Viewer) => {
            let secure = if dashboard.api.http().tls == Tls::Off { "" } else { "; Secure" };
            let id = dashboard.sessions.begin(hash);
            // Lax, so that a link in an alert leads to the page and not to the way in. Looking changes nothing, and forms have their proof.
            let seconds = LASTS.as_secs();
            let cookie =
                format!("{COOKIE}={id}; Path=/dashboard; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}");
            return (AppendCookie(cookie), Redirect::to(own_path(to))).into_response();
        }
        Ok(Some(_)) => "this token may read metrics and nothing else",
        Ok(None) => "this token is unknown, expired or revoked",
        Err(problem) => return trouble::page(&dashboard, None, &problem),
    };
    let page = frame::login(own_path(to), Some(told));
    (StatusCode::UNAUTHORIZED, Html(page.into_string())).into_response()
}

pub(super) async fn leave(State(dashboard): State<Dashboard>, headers: HeaderMap) -> Response {
    if let Some(problem) = from_elsewhere(&dashboard, &headers) {
        return trouble::page(&dashboard, None, &problem);
    }
    dashboard.sessions.end(&headers);
    let cookie = format!("{COOKIE}=; Path=/dashboard; HttpOnly; SameSite=Lax; Max-Age=0");
    (AppendCookie(cookie), Redirect::to("/dashboard/login")).into_response()
}

/// That a page of another site made a browser send this form. Browsers say where a request comes from; where one does not, and no proxy
/// may have changed the host, its origin has to be this one.
fn from_elsewhere(dashboard: &Dashboard, headers: &HeaderMap) -> Option<Problem> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let elsewhere = match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => !matches!(site, "same-origin" | "none"),
        (None, Some(origin)) if dashboard.api.http().tls != Tls::Proxy => {
            origin.split_once("://").map(|(_, at)| at) != text("host")
        }
        _ => false,
    };
    let told = "this form came from a page of another site; nothing was done";
    elsewhere.then(|| Problem::new(Code::Forbidden, told))
}

/// A path of the dashboard, and never of another site.
fn own_path(to: &str) -> &str {
    let ours = to == "/dashboard" || to.starts_with("/dashboard/") || to.starts_with("/dashboard?");
    if ours { to } else { "/dashboard" }
}

struct AppendCookie(String);

impl axum::response::IntoResponseParts for AppendCookie {
    type Error = std::convert::Infallible;
    fn into_response_parts(
        self,
        mut parts: axum::response::ResponseParts,
    ) -> Result<axum::response::ResponseParts, Self::Error> {
        if let Ok(value) = HeaderValue::from_str(&self.0) {
            parts.headers_mut().append(header::SET_COOKIE, value);
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_in_leads_to_our_own_pages_alone() {
        assert_eq!(own_path("/dashboard/failures?group=1"), "/dashboard/failures?group=1");
        for elsewhere in ["https://evil.example/", "//evil.example", "/dashboardx", "", "/v1/tokens"] {
            assert_eq!(own_path(elsewhere), "/dashboard", "{elsewhere}");
        }
    }

    #[test]
    fn a_session_is_found_by_its_cookie_until_it_ends() {
        let sessions = Sessions::new(Clock::system());
        let id = sessions.begin(TokenHash::of("prt_1"));
        let with =
            |value: String| HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(&value).unwrap())]);
        let headers = with(format!("other=1; {COOKIE}={id}"));
        assert!(sessions.find(&headers).is_some_and(|session| session.token == TokenHash::of("prt_1")));
        assert!(sessions.find(&with(format!("{COOKIE}=guess"))).is_none());
        sessions.end(&headers);
        assert!(sessions.find(&headers).is_none());
    }
}
