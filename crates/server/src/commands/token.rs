//! `postrider token`: who may call the HTTP API. A token is shown once; only its hash is stored.

use anyhow::Context as _;
use clap::{Args, Subcommand};
use postrider::envelope::TenantId;
use postrider::store::{Token, TokenRole, Tokens};
use uuid::Uuid;

use super::Context;
use crate::desk::tokens::{NewToken, TokenRow, expiry};
use crate::desk::write_down;
use crate::exit::{Exit, usage};
use crate::wiring::{OnStore, WholeStore, Wired};

/// What to do with tokens.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider token create --role viewer --name dashboard\n  \
    postrider token ls\n\n\
    What each role may do: metrics reads the metrics alone, viewer reads everything, operator publishes, replays and pauses, admin also \
    makes tokens and changes the books' rules. Without any token the API is open to this machine alone.")]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a token and show it, once
    #[command(after_help = "Examples:\n  \
        postrider token create --role viewer --name dashboard\n  \
        postrider token create --role operator --tenant acme --expires 90d\n\n\
        Once a token exists, the API asks for one on this machine too, until every token is revoked: one that ends opens nothing.")]
    Create(Create),
    /// List the tokens, without the secrets
    Ls,
    /// Take a token back
    Revoke {
        /// Its id, as `postrider token ls` shows it
        #[arg(value_parser = super::id)]
        id: Uuid,
        /// Why, for the audit log
        #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
        reason: String,
        /// Say what would be revoked, and revoke nothing
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Args)]
struct Create {
    /// What it may do: metrics, viewer, operator or admin
    #[arg(long, value_parser = role)]
    role: TokenRole,
    /// The one tenant it is for [default: all]
    #[arg(long)]
    tenant: Option<String>,
    /// What it is for, so that people know it in the list
    #[arg(long, default_value = "", hide_default_value = true)]
    name: String,
    /// When it ends by itself: a time such as 2027-01-01T00:00:00Z, or from now on, such as 90d [default: never]
    #[arg(long, value_name = "TIME|DURATION")]
    expires: Option<String>,
    /// Why, for the audit log
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT")]
    reason: String,
    /// Check everything, and make nothing
    #[arg(long)]
    dry_run: bool,
}

fn role(name: &str) -> Result<TokenRole, String> {
    TokenRole::from_name(name).ok_or_else(|| "there are metrics, viewer, operator and admin".to_owned())
}

/// The command, on a store.
pub(crate) struct Manage<'a> {
    pub(crate) args: TokenArgs,
    pub(crate) context: &'a Context,
}

impl OnStore for Manage<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        let context = self.context;
        match self.args.what {
            What::Create(create) => make(create, &wired.store, context).await,
            What::Ls => list(&wired.store, context).await,
            What::Revoke { id, reason, dry_run } => revoke(id, &reason, dry_run, &wired.store, context).await,
        }
    }
}

async fn make<S: WholeStore>(create: Create, store: &S, context: &Context) -> anyhow::Result<Exit> {
    let now = context.clock.now();
    let expires = create.expires.map(|text| expiry(&text, now));
    let new = NewToken {
        id: None,
        name: create.name,
        role: create.role,
        tenant: create.tenant.map(TenantId::new).transpose()?,
        expires_at: expires.transpose().map_err(|why| usage(format!("--expires {why}")))?,
    };
    let (token, secret) = new.make(&context.clock);
    if create.dry_run {
        context
            .output
            .note(&format!("would make a token with the role {}; nothing was made", token.role.as_str()));
        return Ok(Exit::Ok);
    }
    let subject = format!("token/{}", token.id);
    let first = store.tokens().await?.iter().all(|token| token.revoked_at.is_some());
    write_down(store, context.log_entry("token.created", subject, &create.reason)).await?;
    store.create_token(&token).await?;
    let made = TokenRow { token: Some(secret.clone()), ..TokenRow::of(&token, now) };
    context.output.one(&made, &secret)?;
    context.output.note(&format!(
        "this is shown once; keep it safe. Take it back with: postrider token revoke {}",
        token.id
    ));
    if first {
        context.output.note("from now on API and dashboard ask everybody for a token, on this machine too");
    }
    Ok(Exit::Ok)
}

async fn list<S: Tokens>(store: &S, context: &Context) -> anyhow::Result<Exit> {
    let now = context.clock.now();
    let rows: Vec<_> = store.tokens().await?.iter().map(|token| TokenRow::of(token, now)).collect();
    let header = ["ID", "NAME", "ROLE", "TENANT", "STATE", "CREATED", "EXPIRES"];
    context.output.rows(&header, &rows, |row| {
        vec![
            row.id.clone(),
            row.name.clone(),
            row.role.to_owned(),
            row.tenant.clone().unwrap_or_else(|| "all".to_owned()),
            row.state.to_owned(),
            row.created_at.to_string(),
            row.expires_at.map_or_else(|| "never".to_owned(), |at| at.to_string()),
        ]
    })?;
    Ok(Exit::Ok)
}

async fn revoke<S: WholeStore>(
    id: Uuid,
    reason: &str,
    dry_run: bool,
    store: &S,
    context: &Context,
) -> anyhow::Result<Exit> {
    let now = context.clock.now();
    let all = store.tokens().await?;
    let token = all.iter().find(|token| token.id == id);
    let token = token.with_context(|| format!("there is no token {id}; `postrider token ls` lists them"))?;
    if token.revoked_at.is_some() {
        context.output.note("it is revoked already; nothing was changed");
        return Ok(Exit::Ok);
    }
    let what = format!("the token {id} {} with the role {}", token.name, token.role.as_str());
    if dry_run {
        context.output.note(&format!("would revoke {what}; nothing was changed"));
        return Ok(Exit::Ok);
    }
    context.output.confirm(&format!("revoke {what}?"))?;
    write_down(store, context.log_entry("token.revoked", format!("token/{id}"), reason)).await?;
    store.revoke_token(id, now).await?;
    context.output.note(&format!("revoked {what}"));
    if !context.output.is_for_people() {
        let revoked = Token { revoked_at: Some(now), ..token.clone() };
        context.output.one(&TokenRow::of(&revoked, now), "")?;
    }
    Ok(Exit::Ok)
}
