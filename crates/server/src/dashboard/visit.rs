//! Who is looking: what they may do, and what they sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::actions::Action;
use crate::api::{Caller, Code, Problem, Tenants, read_only};

/// A visitor who is known, with one request.
#[derive(Clone)]
pub(crate) struct Visit {
    pub(super) caller: Caller,
    /// Has to come back with every form.
    pub(super) proof: String,
    /// Nothing can be changed here, whoever asks.
    pub(super) read_only: bool,
    /// What a form sent. Only here once its proof was found right.
    pub(super) fields: Arc<BTreeMap<String, String>>,
    pub(super) now: Timestamp,
    /// The path, to show where one is.
    pub(super) path: String,
    pub(super) backend: String,
}

impl Visit {
    /// Whether this is the owner of the machine, with no token anywhere.
    pub(super) fn is_owner(&self) -> bool {
        self.caller.token.is_none()
    }

    /// Who it is, for the audit log.
    pub(super) fn actor(&self) -> String {
        self.caller.token.map_or_else(|| "local operator".to_owned(), |id| format!("token {id}"))
    }

    /// Whether they may do this; if not, why.
    pub(super) fn may(&self, action: Action) -> Result<(), Problem> {
        if self.read_only {
            return Err(read_only());
        }
        let (role, tenants) = action.needs();
        self.caller.may("POST", role, tenants)
    }

    /// Whether they may see what belongs to all tenants together.
    pub(super) fn sees_all(&self) -> Result<(), Problem> {
        self.caller.may("GET", postrider::store::TokenRole::Viewer, Tenants::All)
    }

    /// Whether they may see a thing of this tenant.
    pub(super) fn sees(&self, tenant: Option<&str>) -> bool {
        self.caller.tenant.as_ref().is_none_or(|own| tenant == Some(own.as_str()))
    }

    /// What a field of the form says, if it says anything.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// Why, which every change is asked for.
    pub(super) fn reason(&self) -> Result<&str, Problem> {
        let none = || Problem::new(Code::InvalidRequest, "say why, for the audit log; nothing was changed");
        self.field("reason").ok_or_else(none)
    }

    /// A field that is needed, read as what it is.
    pub(super) fn needs<T: std::str::FromStr>(&self, name: &str) -> Result<T, Problem> {
        let none = || Problem::new(Code::InvalidRequest, format!("{name} is missing or cannot be read"));
        self.field(name).and_then(|text| text.parse().ok()).ok_or_else(none)
    }
}
