//! Who may do what: bearer tokens with roles, and the owner of the machine while there are no tokens.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use postrider::envelope::TenantId;
use postrider::store::{TokenHash, TokenRole};
use subtle::ConstantTimeEq as _;

use super::pace::Whose;
use super::problem::{Code, Problem};
use super::table::{self, Tenants};
use super::{Api, ApiBackend, lasting, trail};
use crate::config::{Http, Tls};

/// Who is calling, once a route has let them in.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// What they may do.
    pub(crate) role: TokenRole,
    /// The one tenant they act for, if they are bound to one.
    pub(crate) tenant: Option<TenantId>,
    /// The token they came with; none for the owner of the machine.
    pub(crate) token: Option<uuid::Uuid>,
}

/// A scrape waits so long for the store; it has to come back while Prometheus waits for it.
const SCRAPE_PATIENCE: Duration = Duration::from_secs(2);

/// The owner of the machine.
const OWNER: Caller = Caller { role: TokenRole::Admin, tenant: None, token: None };

impl Caller {
    /// Whether they may do what needs this role, and is about these tenants.
    pub(crate) fn may(&self, method: &str, role: TokenRole, tenants: Tenants) -> Result<(), Problem> {
        if !self.role.allows(role) {
            let (has, needs) = (self.role.as_str(), role.as_str());
            return Err(Problem::new(
                Code::Forbidden,
                format!("the token has the role {has}; this needs {needs}"),
            ));
        }
        match (&self.tenant, tenants) {
            (Some(own), Tenants::All) => {
                let what = if method == "GET" { "shows" } else { "is about" };
                let told = format!("the token is for the tenant {own} alone, and this {what} those of all");
                Err(Problem::new(Code::Forbidden, told))
            }
            _ => Ok(()),
        }
    }

    /// Who it was, for the audit log.
    pub(crate) fn name(&self) -> String {
        self.token.map_or_else(|| "api".to_owned(), |id| format!("token {id}"))
    }
}

/// Lets in whom the table of routes lets in.
pub(super) async fn require(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let Some(route) = table::find(request.method().as_str(), path) else {
        let told = format!("{} {path} is not in the table of routes; this is a bug", request.method());
        return Err(Problem::new(Code::Internal, told));
    };
    let Some(role) = route.role else { return Ok(next.run(request).await) };
    let caller = caller(&api, peer, request.headers()).await?;
    caller.may(route.method, role, route.tenants)?;
    if route.changes && api.http().read_only {
        return Err(read_only());
    }
    if route.paced {
        api.paced(&caller, peer)?;
    }
    let watches =
        (route.path == "/stream").then(|| lasting::token_gone(api.clone(), peer, request.headers().clone()));
    let uri = request.uri().clone();
    let entry = trail::begin(&api, route, &caller, &uri).await?;
    request.extensions_mut().insert(caller);
    let about_tokens = route.changes && route.path.starts_with("/tokens");
    let response = next.run(request).await;
    trail::end(&api, entry, response.status()).await;
    if let Some(gone) = watches {
        return Ok(lasting::until(response, gone));
    }
    if about_tokens {
        api.known.forget();
    }
    Ok(response)
}

/// That nothing can be changed through this process.
pub(crate) fn read_only() -> Problem {
    let told = "this process only shows what there is (http.read_only); nothing was changed";
    Problem::new(Code::ReadOnly, told)
}

impl Api {
    /// Counts a request of a caller, or says that there were too many.
    pub(crate) fn paced(&self, caller: &Caller, peer: SocketAddr) -> Result<(), Problem> {
        let whose = caller.token.map_or(Whose::Peer(peer.ip()), Whose::Token);
        let limit = self.http().requests_per_second;
        self.pace.take(whose, self.clock.monotonic(), limit).map_err(|wait| {
            let told = format!(
                "more than {limit} requests a second (http.requests_per_second); try again in {} ms",
                wait.as_millis().max(1)
            );
            Problem::new(Code::RateLimited, told)
        })
    }
}

/// Lets in who has the metrics token, or a token that may read metrics.
pub(super) async fn require_metrics(
    State(api): State<Api>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let headers = request.headers();
    let http = api.http();
    if let Some(secret) = http.metrics_token.get() {
        let own = headers.get("x-metrics-token").and_then(|value| value.to_str().ok());
        let matches = |given: &str| bool::from(given.as_bytes().ct_eq(secret.as_bytes()));
        if own.or_else(|| bearer(headers)).is_some_and(matches) {
            return Ok(next.run(request).await);
        }
        if bearer(headers).is_none() {
            let detail = "send the metrics token as x-metrics-token or as Authorization: Bearer";
            return Err(Problem::new(Code::Unauthenticated, detail));
        }
    }
    may_scrape(&api, peer, headers).await?;
    Ok(next.run(request).await)
}

/// Every role may read metrics, but not on behalf of one tenant: they are of all. That the store is away is told by metrics, too. So who
/// could read them when it last answered reads them until it does again.
async fn may_scrape(api: &Api, peer: SocketAddr, headers: &HeaderMap) -> Result<(), Problem> {
    let token = bearer(headers).map(TokenHash::of);
    // Who comes from elsewhere without a token says nothing about the owner of the machine.
    let known = token.is_some() || is_local(api, peer, headers);
    let away = |problem: &Problem| problem.is(Code::StoreUnavailable);
    let found = match tokio::time::timeout(SCRAPE_PATIENCE, caller(api, peer, headers)).await {
        Ok(found) => found.and_then(|caller| caller.may("GET", TokenRole::Metrics, Tenants::All)),
        Err(_late) => Err(Problem::store_away()),
    };
    if found.as_ref().is_err_and(away) {
        return if known && api.known.could_read(token.as_ref()) { Ok(()) } else { found };
    }
    if known {
        api.known.note_reader(token.as_ref(), found.is_ok());
    }
    found
}

/// Who is calling. Where there is no token, or all were revoked, callers on this machine may do everything.
pub(super) async fn caller(api: &Api, peer: SocketAddr, headers: &HeaderMap) -> Result<Caller, Problem> {
    if let Some(secret) = bearer(headers) {
        let (hash, now) = (TokenHash::of(secret), api.clock.monotonic());
        if let Some(caller) = api.known.caller(&hash, now) {
            return Ok(caller);
        }
        let unknown = || Problem::new(Code::Unauthenticated, "this token is unknown, expired or revoked");
        let caller = with_token(api, &hash).await?.ok_or_else(unknown)?;
        api.known.remember(&hash, &caller, now);
        return Ok(caller);
    }
    let now = api.clock.monotonic();
    if api.known.none(now) && is_local(api, peer, headers) {
        return Ok(OWNER);
    }
    if let Some(owner) = owner(api, peer, headers).await? {
        api.known.remember_none(now);
        return Ok(owner);
    }
    Err(Problem::new(
        Code::Unauthenticated,
        "send a token: Authorization: Bearer …; `postrider token create --role operator` makes one",
    ))
}

/// Who has this token, if it is valid now.
pub(crate) async fn with_token(api: &Api, hash: &TokenHash) -> Result<Option<Caller>, Problem> {
    let same = |stored: &TokenHash| bool::from(stored.as_bytes().ct_eq(hash.as_bytes()));
    let token = api.backend.token(hash).await?;
    let valid = token.filter(|token| same(&token.hash) && token.is_valid(api.clock.now()));
    Ok(valid.map(|token| Caller { role: token.role, tenant: token.tenant, token: Some(token.id) }))
}

/// Whether somebody on this machine calls. Behind a proxy everybody seems to.
fn is_local(api: &Api, peer: SocketAddr, headers: &HeaderMap) -> bool {
    let near = api.listens_at.ip().is_loopback() && peer.ip().is_loopback();
    near && api.http().tls != Tls::Proxy && is_direct(headers)
}

/// The owner of the machine, if that is who calls and there are no tokens.
pub(crate) async fn owner(
    api: &Api,
    peer: SocketAddr,
    headers: &HeaderMap,
) -> Result<Option<Caller>, Problem> {
    let alone = is_local(api, peer, headers) && !api.backend.has_tokens().await?;
    Ok(alone.then_some(OWNER))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// Whether a request was meant for this machine: not sent on by a proxy, nor by a page of some other site that made a
/// browser call here (its Origin tells, and so does the Host when a foreign name was made to point here).
fn is_direct(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let forwarded =
        ["forwarded", "x-forwarded-for", "x-real-ip"].iter().any(|name| headers.contains_key(*name));
    let host = text("host").is_none_or(is_loopback_name);
    let origin = text("origin")
        .is_none_or(|origin| origin.split_once("://").is_some_and(|(_, at)| is_loopback_name(at)));
    !forwarded && host && origin
}

fn is_loopback_name(authority: &str) -> bool {
    if let Ok(address) = authority.parse::<SocketAddr>() {
        return address.ip().is_loopback();
    }
    let bare = authority.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<std::net::IpAddr>() {
        return ip.is_loopback();
    }
    authority.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case("localhost"))
}

/// Off loopback, callers need a token and TLS; behind a proxy, who need not be on this machine, a token. Refuses to start where one is
/// missing.
pub(crate) async fn refuse_open_doors(backend: &dyn ApiBackend, http: &Http) -> anyhow::Result<()> {
    refuse_plain(http)?;
    let behind_a_proxy = http.tls == Tls::Proxy;
    if (http.listen.ip().is_loopback() && !behind_a_proxy) || backend.has_tokens().await? {
        return Ok(());
    }
    let (how, or) = if behind_a_proxy {
        (" through its proxy", "set http.tls = \"off\" where there is none, and listen on 127.0.0.1")
    } else {
        ("", "listen on 127.0.0.1")
    };
    Err(crate::exit::usage(format!(
        "{} can be reached from other machines{how}, and there is no token yet; make one with `postrider token create --role \
         admin`, or {or}",
        http.listen
    )))
}

/// Off loopback no token may cross the network unprotected: refuses to start where it would.
pub(crate) fn refuse_plain(http: &Http) -> anyhow::Result<()> {
    if !http.listen.ip().is_loopback() && http.tls == Tls::Off {
        return Err(crate::exit::usage(format!(
            "{} can be reached from other machines, and tokens would cross the network unprotected; put a proxy with TLS \
             in front and set http.tls = \"proxy\", give a certificate and set http.tls = \"own\", or listen on 127.0.0.1",
            http.listen
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_meant_for_this_machine_is_direct() {
        let with = |name: &'static str, value: &'static str| {
            is_direct(
                &[(axum::http::HeaderName::from_static(name), value.parse().unwrap())].into_iter().collect(),
            )
        };
        for host in ["localhost", "localhost:7070", "127.0.0.1:7070", "[::1]:7070", "[::1]", "127.0.0.1"] {
            assert!(with("host", host), "{host}");
        }
        assert!(with("origin", "http://localhost:7070"));
        for (name, value) in [
            ("host", "evil.example:7070"),
            ("host", "localhost.evil.example"),
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("x-forwarded-for", "10.0.0.1"),
        ] {
            assert!(!with(name, value), "{name}: {value}");
        }
    }
}
