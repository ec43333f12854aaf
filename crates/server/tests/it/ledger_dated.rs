//! Books by the day, rules tried and the chain signed over HTTP, and entries by hand that are refused by name: on both stores.

use serde_json::{Value, json};

use super::ledger_http::{Desk, entry};

fn on(day: &str, id: &str, amount: &str) -> Value {
    let mut entry = entry(id, amount);
    entry["effectiveOn"] = json!(day);
    entry
}

fn balances(page: &Value) -> Vec<&str> {
    page["movements"].as_array().unwrap().iter().map(|one| one["balance"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_and_totals_go_by_the_day_that_entries_count_for() {
    for desk in Desk::both().await {
        // Posted in another order than that of their days.
        for (day, id, amount) in [
            ("2026-03-05", "e-1", "5"),
            ("2026-02-27", "e-2", "2"),
            ("2026-03-01", "e-3", "1"),
            ("2026-04-01", "e-4", "9"),
        ] {
            assert_eq!(desk.call("POST", "/acme/entries", "", &on(day, id, amount)).0, 201);
        }
        let march = "/acme/accounts/bank/statement?from=2026-03-01&to=2026-03-31";
        let page = desk.get(march);
        assert_eq!(balances(&page), ["-3.00", "-8.00"], "{page}");
        let held = |balance: &str| json!([{"currency": "EUR", "balance": balance}]);
        assert_eq!((&page["opening"], &page["closing"]), (&held("-2.00"), &held("-8.00")));
        assert_eq!(page["next"], Value::Null);
        // The same in two pages.
        let first = desk.get(&format!("{march}&limit=1"));
        assert_eq!((balances(&first), &first["closing"]), (vec!["-3.00"], &held("-3.00")));
        let place = first["next"].as_str().unwrap();
        let second = desk.get(&format!("{march}&limit=1&after={place}"));
        assert_eq!((balances(&second), &second["opening"]), (vec!["-8.00"], &held("-3.00")));
        assert_eq!(second["next"], Value::Null);
        for wrong in ["from=2026-03-01&before=1.1", "after=yesterday", "from=2026-03-31&to=2026-03-01"] {
            let (status, told) =
                desk.call("GET", &format!("/acme/accounts/bank/statement?{wrong}"), "", &Value::Null);
            assert_eq!((status, &told["code"]), (422, &json!("invalid_request")), "{told}");
        }

        let swapped = desk.call("GET", "/acme/totals?from=2026-03-31&to=2026-03-01", "", &Value::Null);
        assert_eq!(swapped.0, 422, "{swapped:?}");
        let totals =
            desk.get("/acme/totals?by=day&account=bank&from=2026-03-01&to=2026-03-31")["totals"].clone();
        let days: Vec<_> =
            totals.as_array().unwrap().iter().map(|row| (&row["day"], &row["credits"])).collect();
        assert_eq!(days, [(&json!("2026-03-01"), &json!("1.00")), (&json!("2026-03-05"), &json!("5.00"))]);
        assert_eq!(
            desk.get("/acme/totals")["totals"].as_array().map(Vec::len),
            Some(8),
            "two accounts on four days"
        );
        // The same row by row: no page skips one, and none has one again.
        let (all, mut walked, mut place) = (desk.get("/acme/totals"), Vec::new(), String::new());
        loop {
            let page = desk.get(&format!("/acme/totals?limit=1{place}"));
            walked.extend(page["totals"].as_array().unwrap().iter().cloned());
            let Some(next) = page["next"].as_str() else { break };
            place = format!("&after={next}");
        }
        assert_eq!((Value::from(walked), &all["next"]), (all["totals"].clone(), &Value::Null));
        let (status, told) = desk.call("GET", "/acme/totals?after=yesterday", "", &Value::Null);
        assert_eq!((status, &told["code"]), (422, &json!("invalid_request")), "{told}");

        let ledger = |words: &[&str]| desk.folder.run(&[&["ledger", "--tenant", "acme"], words].concat());
        let printed = ledger(&["statement", "bank", "--from", "2026-03-01", "--to", "2026-03-31"]);
        let printed = printed.assert(0, "held before").out;
        assert!(printed.contains("-2.00") && printed.contains("held after"), "{printed}");
        let shown = ledger(&["statement", "bank", "--from", "2026-03-01", "--limit", "1", "--json"]);
        assert_eq!(shown.assert(0, "--after 2026-03-01/").json()["opening"], held("-2.00"));
        ledger(&["statement", "bank", "--from", "2026-03-31", "--to", "2026-03-01"])
            .assert(2, "is later than");
        ledger(&["income-statement", "--from", "2026-03-31", "--to", "2026-03-01"])
            .assert(2, "is later than");
        let swapped = "/acme/income-statement?from=2026-03-31&to=2026-03-01";
        assert_eq!(desk.call("GET", swapped, "", &Value::Null).0, 422);
        ledger(&["statement", "bank", "--from", "2026-03-01", "--before", "1.1"])
            .assert(2, "cannot be used with");
        let rows = ledger(&["totals", "--by", "day", "--account", "bank", "--json"]).assert(0, "").json();
        assert_eq!((rows.as_array().map(Vec::len), &rows[0]["day"]), (Some(4), &json!("2026-02-27")));
        let first = ledger(&["totals", "--account", "bank", "--limit", "1", "--json"]);
        let first = first.assert(0, "--after 2026-02-27/EUR/bank").json();
        assert_eq!(first, json!([rows[0]]));
        let last = ledger(&["totals", "--account", "bank", "--after", "2026-03-05/EUR/bank", "--json"]);
        assert_eq!(last.assert(0, "").json(), json!([rows[3]]));
        assert_eq!((&rows[0]["balance"], &rows[0]["base_balance"]), (&json!("-2.00"), &json!("-2.00")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_are_tried_and_the_chain_is_signed_over_http() {
    for desk in Desk::both().await {
        let event = |data: Value| json!({"type": "payroll.salary.disbursed", "id": "s-1", "tenant": "acme", "data": data});
        let good =
            event(json!({"employeeId": "e", "gross": "10.01", "currency": "EUR", "paidOn": "2026-03-01"}));
        let bad = event(json!({"employeeId": "e", "currency": "EUR", "paidOn": "2026-03-01"}));
        let body = json!({"events": [good, bad, {"colour": "red"}]});
        let (status, tried) = desk.call("POST", "/acme/rules/check", "", &body);
        assert_eq!((status, &tried["would_post"]), (200, &json!(1)), "{tried}");
        let refused: Vec<_> = tried["events"].as_array().unwrap().iter().map(|one| &one["refused"]).collect();
        assert_eq!(refused, [&Value::Null, &json!("missing_amount"), &json!("malformed")], "{tried}");
        assert_eq!(tried["events"][0]["lines"][0]["amount"], "10.01", "{tried}");
        // Every digit counts, as it does when the event is posted.
        let text = r#"{"events": [{"type": "payroll.salary.disbursed", "id": "s-2", "tenant": "acme", "data":
            {"employeeId": "e", "gross": 10.0100000000000000001, "currency": "EUR", "paidOn": "2026-03-01"}}]}"#;
        let (_, _, tried) = desk.serving.http("POST", "/v1/ledger/acme/rules/check", &[], text);
        assert!(tried.contains("too_many_digits"), "{tried}");
        let (status, told) =
            desk.call("POST", "/acme/rules/check", "", &json!({"document": "[[rule]]\nname = 1"}));
        assert_eq!((status, &told["code"]), (422, &json!("invalid_request")), "{told}");
        assert_eq!(desk.get("/acme/entries")["entries"], json!([]), "nothing was written");

        let sign = || desk.call("POST", "/acme/checkpoints", "", &Value::Null);
        let (status, told) = sign();
        assert_eq!((status, &told["code"]), (409, &json!("no_entries")), "{told}");
        assert_eq!(desk.call("POST", "/acme/entries", "", &entry("e-1", "5")).0, 201);
        let (status, made) = sign();
        assert_eq!((status, &made["first"], &made["last"]), (201, &json!("1"), &json!("1")), "{made}");
        assert_eq!(sign(), (200, made.clone()));
        assert_eq!(desk.get("/acme/checkpoints")["checkpoints"], json!([made]));
        assert_eq!(desk.get("/acme/entries/1/proof")["holds"], true);
        let viewer = desk.token("viewer", None);
        assert_eq!(desk.call("POST", "/acme/checkpoints", &viewer, &Value::Null).0, 403);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_by_hand_is_refused_by_the_name_of_what_is_wrong() {
    for desk in Desk::both().await {
        let with = |place: &str, value: Value| {
            let mut entry = entry("e-1", "5");
            *entry.pointer_mut(place).unwrap() = value;
            entry
        };
        for (body, code) in [
            (with("/lines/0/currency", json!("EURO")), "unknown_currency"),
            (with("/lines/0/account", json!("no such account")), "bad_account"),
            (with("/lines/0/account", json!("nowhere")), "unknown_account"),
            (with("/effectiveOn", json!("2026-02-30")), "bad_date"),
            (with("/effectiveOn", json!("1812-02-03")), "bad_date"),
            (with("/lines", json!([])), "too_few_lines"),
        ] {
            let (status, told) = desk.call("POST", "/acme/entries", "", &body);
            assert_eq!((status, told["code"].as_str()), (422, Some(code)), "{told}");
            let correction = json!({"entry": body});
            let (_, told) = desk.call("POST", "/acme/entries/1/corrections", "", &correction);
            assert_ne!(told["code"], "invalid_json", "{told}");
        }
        assert_eq!(desk.call("POST", "/acme/entries", "", &entry("e-1", "5")).0, 201);
        assert_eq!(desk.call("POST", "/acme/entries", "", &entry("e-1", "5")).0, 200, "the same is the same");
    }
}
