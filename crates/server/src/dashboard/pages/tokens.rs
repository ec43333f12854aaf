//! Tokens: who may call, made and taken back.

use axum::extract::{Extension, Path, State};
use axum::response::Redirect;
use maud::{Markup, html};
use postrider::envelope::TenantId;
use postrider::store::TokenRole;
use uuid::Uuid;

use super::super::actions::{Action, button, form, reason_field, short_reason};
use super::super::parts::{state, table, time};
use super::super::visit::Visit;
use super::super::{Dashboard, Done, Page, frame};
use super::{Here, Who};
use crate::api::{Code, Problem};
use crate::desk::tokens::{NewToken, TokenRow, expiry};

pub(in crate::dashboard) async fn list(State(dashboard): Here, Extension(visit): Who) -> Page {
    page(&dashboard, &visit, None).await
}

async fn page(dashboard: &Dashboard, visit: &Visit, made: Option<&TokenRow>) -> Page {
    let (role, tenants) = Action::ManageTokens.needs();
    visit.caller.may("GET", role, tenants)?;
    let tokens = dashboard.front.desk.tokens().await?;
    let rows: Vec<Markup> = tokens.iter().map(|token| row(token, visit)).collect();
    let header = ["Name", "Role", "Tenant", "State", "Made", "Ends", ""];
    Ok(frame::page(
        visit,
        "Tokens",
        html! {
            (frame::top("Tokens", "Who may use the API and this dashboard. Only their hashes are kept.", html! {}))
            @if let Some(made) = made {
                section class="card" role="status" {
                    h2 { "The new token, shown once" }
                    div class="secret" { (made.token.as_deref().unwrap_or_default()) }
                    @if visit.is_owner() { p class="quiet" { "From now on this dashboard asks for a token too: sign in with this one." } }
                }
            }
            section class="card" {
                h2 { "Make a token" }
                (form(visit, "/dashboard/tokens", "row", html! {
                    label class="field" { span { "Name" } input type="text" name="name" placeholder="what it is for"; }
                    label class="field" { span { "Role" } select name="role" {
                        @for role in TokenRole::ALL.into_iter().rev() { option value=(role.as_str()) { (role.as_str()) } }
                    } }
                    label class="field" { span { "Tenant" } input type="text" name="tenant" placeholder="all"; }
                    label class="field" { span { "Ends" } input type="text" name="expires" placeholder="never, or 90d"; }
                    (reason_field("for the audit log"))
                    (button(visit, Action::ManageTokens, "main", "Make"))
                }))
            }
            section class="card flush" { (table(&header, &rows, ("No token yet", "whoever is on this machine may do everything"))) }
        },
    ))
}

fn row(token: &TokenRow, visit: &Visit) -> Markup {
    html! { tr {
        td { b { (if token.name.is_empty() { "(no name)" } else { &token.name }) } div class="quiet mono" { (token.id) } }
        td { (token.role) }
        td { (token.tenant.as_deref().unwrap_or("all")) }
        td { (state(token.state)) }
        td { (time(token.created_at)) }
        td { @match token.expires_at { Some(at) => (time(at)), None => { "never" } } }
        td { @if token.state == "valid" {
            (form(visit, &format!("/dashboard/tokens/{}/revoke", token.id), "row", html! {
                (short_reason())
                (button(visit, Action::ManageTokens, "small danger", "Revoke"))
            }))
        } }
    } }
}

pub(in crate::dashboard) async fn make(State(dashboard): Here, Extension(visit): Who) -> Page {
    visit.may(Action::ManageTokens)?;
    let wrong = |told: String| Problem::new(Code::InvalidRequest, told);
    let role = visit.field("role").and_then(TokenRole::from_name);
    let new = NewToken {
        id: None,
        name: visit.field("name").unwrap_or_default().to_owned(),
        role: role.ok_or_else(|| wrong("choose a role".to_owned()))?,
        tenant: visit
            .field("tenant")
            .map(TenantId::new)
            .transpose()
            .map_err(|error| wrong(error.to_string()))?,
        expires_at: visit.field("expires").map(|text| expiry(text, visit.now)).transpose().map_err(wrong)?,
    };
    let made = dashboard.front.desk.make_token(new, &visit.actor(), Some(visit.reason()?)).await?;
    page(&dashboard, &visit, Some(&made)).await
}

pub(in crate::dashboard) async fn revoke(
    State(dashboard): Here,
    Extension(visit): Who,
    Path(id): Path<Uuid>,
) -> Done {
    visit.may(Action::ManageTokens)?;
    dashboard.front.desk.revoke_token(id, &visit.actor(), Some(visit.reason()?)).await?;
    Ok(Redirect::to("/dashboard/tokens"))
}
