//! What stands around every page: where one can go, who one is, and the title.

use maud::{DOCTYPE, Markup, html};

use super::actions::form;
use super::visit::Visit;

/// Where one can go: the shortcut, the path, the name, and whether it shows what belongs to all tenants.
const PLACES: [(&str, &str, &str, bool); 13] = [
    ("o", "/dashboard", "Overview", true),
    ("f", "/dashboard/failures", "Failures", false),
    ("e", "/dashboard/events", "Events", false),
    ("b", "/dashboard/outbox", "Outbox", true),
    ("c", "/dashboard/consumers", "Consumers", true),
    ("t", "/dashboard/topology", "Topology", true),
    ("p", "/dashboard/push", "Push", true),
    ("j", "/dashboard/jobs", "Jobs", false),
    ("m", "/dashboard/migration", "Migration", true),
    ("l", "/dashboard/ledger", "Ledger", false),
    ("r", "/dashboard/operations", "Operations", false),
    ("a", "/dashboard/audit-log", "Audit log", true),
    ("k", "/dashboard/tokens", "Tokens", true),
];

/// A page for a visitor.
#[expect(clippy::needless_pass_by_value, reason = "it is made on the spot")]
pub(super) fn page(visit: &Visit, title: &str, content: Markup) -> Markup {
    whole(
        title,
        html! {
            a class="skip" href="#main" { "Skip to the content" }
            div class="frame" {
                div class="side" {
                    a class="brand" href="/dashboard" { img src="/dashboard/icon.svg" alt=""; "Postrider" }
                    details class="menu" { summary { "Menu" } }
                    nav aria-label="Pages" { ul { @for place in PLACES { li { (way(visit, place)) } } } }
                    (who(visit))
                }
                main id="main" { (content) }
            }
            (keys())
        },
    )
}

/// The title of a page, with what is said of it and what can be done beside it.
#[expect(clippy::needless_pass_by_value, reason = "it is made on the spot")]
pub(super) fn top(title: &str, lead: &str, tools: Markup) -> Markup {
    html! {
        div class="top" {
            div { h1 { (title) } @if !lead.is_empty() { p class="lead" { (lead) } } }
            div class="tools" { (tools) }
        }
    }
}

fn way(visit: &Visit, (key, path, name, of_all): (&str, &str, &str, bool)) -> Markup {
    let here = visit.path == path || (path != "/dashboard" && visit.path.starts_with(&format!("{path}/")));
    let letters = path.ends_with("failures") && visit.path.starts_with("/dashboard/letters");
    let shut = if of_all { visit.sees_all().err() } else { None };
    html! {
        @if let Some(problem) = shut {
            span class="shut" title=(problem.detail()) { (name) }
        } @else {
            a href=(path) data-key=(key) aria-current=[(here || letters).then_some("page")] { (name) }
        }
    }
}

fn who(visit: &Visit) -> Markup {
    html! {
        div class="who" {
            div { "On " (visit.backend) }
            @if visit.is_owner() {
                div { "You are the local operator: there is no token, so whoever is on this machine may do everything. "
                    code { "postrider token create --role admin" } " changes that." }
            } @else {
                div { "Role " b { (visit.caller.role.as_str()) }
                    @if let Some(tenant) = &visit.caller.tenant { " for " b { (tenant) } } }
                (form(visit, "/dashboard/logout", "", html! {
                    button type="submit" class="button small" { "Sign out" }
                }))
            }
            @if visit.read_only { div { b { "Read-only" } ": nothing can be changed here." } }
            div class="tools" {
                button type="button" class="button small" id="theme" { "Light / dark" }
                button type="button" class="button small" id="times" { "UTC" }
            }
            div { kbd { "?" } " shows the keys" }
        }
    }
}

fn keys() -> Markup {
    let keys = [
        (
            "g then a letter",
            "go to a page: o overview, f failures, e events, b outbox, c consumers, t topology, p push, j jobs, m migration, \
             l ledger, r operations, a audit log, k tokens",
        ),
        ("/", "find an event"),
        ("p", "pause what lives"),
        ("t", "light or dark"),
        ("u", "times: local or UTC"),
    ];
    html! {
        dialog id="keys" aria-label="Keys" {
            h2 { "Keys" }
            dl class="facts" { @for (key, what) in keys { dt { kbd { (key) } } dd { (what) } } }
            form method="dialog" { button class="button" { "Close" } }
        }
    }
}

/// The way in.
pub(super) fn login(to: &str, wrong: Option<&str>) -> Markup {
    whole(
        "Sign in",
        html! {
            main class="login" id="main" {
                div class="brand" { img src="/dashboard/icon.svg" alt=""; "Postrider" }
                h1 { "Sign in" }
                @if let Some(wrong) = wrong { p class="note bad" role="alert" { (wrong) } }
                form method="post" action="/dashboard/login" class="card" {
                    input type="hidden" name="to" value=(to);
                    label class="field" {
                        span { "Token" }
                        input type="password" name="token" required autofocus autocomplete="off" placeholder="prt_…";
                    }
                    button type="submit" class="button main" { "Sign in" }
                }
                p class="quiet" { code { "postrider token create --role operator" } " makes a token." }
            }
        },
    )
}

/// A page with nothing around it.
#[expect(clippy::needless_pass_by_value, reason = "it is made on the spot")]
pub(super) fn whole(title: &str, body: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " · Postrider" }
                link rel="icon" href="/dashboard/icon.svg" type="image/svg+xml";
                link rel="stylesheet" href="/dashboard/style.css";
                script src="/dashboard/script.js" {}
            }
            body { (body) }
        }
    }
}
