//! The routes of the ledger.

use postrider::store::TokenRole::{Admin, Operator, Viewer};

use super::{Route, get, post};

/// All of them.
pub(super) const ROUTES: &[Route] = &[
    get("/ledger", Viewer, "Who keeps books").own().gives("Tenants"),
    get("/ledger/{tenant}", Viewer, "The settings of a tenant's books").own().gives("Book"),
    get("/ledger/{tenant}/accounts", Viewer, "The chart of accounts").own().gives("Accounts"),
    get(
        "/ledger/{tenant}/accounts/{account}/statement",
        Viewer,
        "The movements of an account: the newest, or those of some days",
    )
    .own()
    .asks(&["before", "from", "to", "after", "limit"])
    .gives("Movements"),
    get("/ledger/{tenant}/entries", Viewer, "Journal entries")
        .own()
        .asks(&["after", "limit"])
        .gives("EntryPage"),
    get("/ledger/{tenant}/entries/{entry}", Viewer, "One journal entry").own().gives("Entry"),
    get("/ledger/{tenant}/entries/{entry}/proof", Viewer, "That an entry is in a signed checkpoint")
        .own()
        .gives("Proof"),
    get("/ledger/{tenant}/balances", Viewer, "The balance of every account")
        .own()
        .asks(&["at"])
        .gives("Balances"),
    get("/ledger/{tenant}/totals", Viewer, "Debits and credits of every account, day by day")
        .own()
        .asks(&["by", "account", "from", "to", "after", "limit"])
        .gives("DayTotals"),
    get("/ledger/{tenant}/trial-balance", Viewer, "Debits and credits of every account")
        .own()
        .asks(&["at"])
        .gives("TrialBalance"),
    get("/ledger/{tenant}/balance-sheet", Viewer, "What one has, owes and owns")
        .own()
        .asks(&["at"])
        .gives("Statement"),
    get("/ledger/{tenant}/income-statement", Viewer, "What came in and went out")
        .own()
        .asks(&["from", "to"])
        .gives("Statement"),
    get("/ledger/{tenant}/verify", Viewer, "Whether the books are as they were written")
        .own()
        .asks(&["after"])
        .gives("Verified"),
    get("/ledger/{tenant}/rules", Viewer, "The rules that make entries of events")
        .own()
        .asks(&["version"])
        .gives("Rules"),
    get("/ledger/{tenant}/rules/versions", Viewer, "Every version of the rules").own().gives("RulesVersions"),
    get("/ledger/{tenant}/rates", Viewer, "What foreign amounts are worth").own().gives("Rates"),
    get("/ledger/{tenant}/periods", Viewer, "Which days take entries").own().gives("Periods"),
    get("/ledger/{tenant}/checkpoints", Viewer, "The signed roots of the chain").own().gives("Checkpoints"),
    get("/ledger/{tenant}/export", Viewer, "The journal as csv, jsonl, hledger or beancount")
        .own()
        .asks(&["format"]),
    post("/ledger/{tenant}", Admin, "Change the settings of a tenant's books")
        .own()
        .takes("NewBook")
        .gives("Book"),
    post("/ledger/{tenant}/open", Admin, "Open the books of a tenant").own().takes("Opening").gives("Book"),
    post("/ledger/{tenant}/import", Operator, "Post history, as it was exported to csv or jsonl")
        .own()
        .takes("History")
        .gives("Imported"),
    post("/ledger/{tenant}/entries", Operator, "Post an entry by hand")
        .own()
        .takes("NewEntry")
        .gives("Receipt"),
    post("/ledger/{tenant}/entries/{entry}/reversals", Operator, "Reverse an entry")
        .own()
        .takes("AboutEntry")
        .gives("Receipt"),
    post(
        "/ledger/{tenant}/entries/{entry}/corrections",
        Operator,
        "Reverse an entry, and post what it should have been",
    )
    .own()
    .takes("NewCorrection")
    .gives("Corrected"),
    post("/ledger/{tenant}/entries/{entry}/settlements", Operator, "Settle a pending entry")
        .own()
        .takes("AboutEntry")
        .gives("Receipt"),
    post("/ledger/{tenant}/entries/{entry}/voids", Operator, "Void a pending entry")
        .own()
        .takes("AboutEntry")
        .gives("Receipt"),
    post("/ledger/{tenant}/accounts", Operator, "Add accounts, or rename, open and close them")
        .own()
        .takes("AccountChanges")
        .gives("Accounts"),
    post("/ledger/{tenant}/rates", Operator, "Add rates, or mend them").own().takes("Rates").gives("Rates"),
    post("/ledger/{tenant}/rules", Admin, "Make these the next version of the rules")
        .own()
        .takes("NewRules")
        .gives("Rules"),
    post("/ledger/{tenant}/rules/check", Operator, "Try rules on events, and write nothing")
        .own()
        .harmless()
        .takes("RulesTrial")
        .gives("RulesTried"),
    post("/ledger/{tenant}/checkpoints", Operator, "Sign the entries since the last checkpoint")
        .own()
        .gives("Checkpoint"),
    post("/ledger/{tenant}/periods", Admin, "Open, close or lock a period")
        .own()
        .takes("NewPeriod")
        .gives("Period"),
    post("/ledger/{tenant}/years/{year}/close", Admin, "Carry a year's result to retained earnings")
        .own()
        .gives("Receipts"),
];
