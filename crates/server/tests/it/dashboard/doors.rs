//! The doors: tokens, roles, tenants, proofs, headers. Without a browser: a browser would be too kind.

use serde_json::{Value, json};

use super::super::process::Folder;

fn token(folder: &Folder, args: &[&str]) -> String {
    let made = folder.run(&[&["token", "create"], args].concat());
    made.assert(0, "prt_").out.trim().to_owned()
}

#[test]
fn pages_are_for_who_is_known_and_forms_need_their_proof() {
    let folder = Folder::new();
    let serving = folder.serve(&["--roles", "api,dashboard"]);
    let (status, head, page) = serving.http("GET", "/dashboard", &[], "");
    assert_eq!(status, 200, "the owner of the machine needs no token");
    assert!(page.contains("You are the local operator"), "and is told so");
    let policy = "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'";
    assert!(head.contains(policy) && head.contains("nosniff") && head.contains("no-store"), "{head}");
    assert!(!page.contains("<script>") && !page.contains(" style=") && !page.contains(" onclick="), "{page}");

    let form = [("content-type", "application/x-www-form-urlencoded")];
    let (status, ..) = serving.http("POST", "/dashboard/tokens", &form, "role=admin&name=x");
    assert_eq!(status, 403, "a form without its proof");
    assert_eq!(folder.run(&["token", "ls", "--json"]).json(), json!([]));
    for (name, value) in [("x-forwarded-for", "10.0.0.1"), ("origin", "https://evil.example")] {
        let (status, head, _) = serving.http("GET", "/dashboard", &[(name, value)], "");
        assert!(status == 303 && head.contains("location: /dashboard/login"), "{head}");
    }

    let viewer = token(&folder, &["--role", "viewer"]);
    let (status, head, _) = serving.http("GET", "/dashboard/failures?group=1", &[], "");
    assert!(status == 303 && head.contains("/dashboard/login?to=%2fdashboard%2ffailures"), "{head}");
    assert_eq!(serving.sign_in("prt_wrong").0, 401);
    for elsewhere in [("sec-fetch-site", "cross-site"), ("origin", "https://evil.example")] {
        let (status, head, _) =
            serving.http("POST", "/dashboard/login", &[form[0], elsewhere], &format!("token={viewer}"));
        assert!(status == 403 && !head.contains("set-cookie"), "{head}");
    }
    let (status, cookie) = serving.sign_in(&viewer);
    assert_eq!(status, 303);
    for part in ["httponly", "samesite=lax", "path=/dashboard"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let own = cookie.split(';').next().unwrap();
    let (status, _, page) = serving.http("GET", "/dashboard/consumers", &[("cookie", own)], "");
    assert!(status == 200 && page.contains("Role <b>viewer</b>"), "{page}");
    let (status, _, page) = serving.http("GET", "/dashboard/tokens", &[("cookie", own)], "");
    assert!(status == 403 && page.contains("this needs admin"), "{page}");
    // Even with the proof, what a role may not do is refused.
    let (_, _, page) = serving.http("GET", "/dashboard/outbox", &[("cookie", own)], "");
    let proof = page.split("name=\"proof\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let headers = [("cookie", own), form[0]];
    let body = format!("proof={proof}&key=a&reason=b");
    let (status, _, page) = serving.http("POST", "/dashboard/outbox/unpark", &headers, &body);
    assert!(status == 403 && page.contains("this needs operator"), "{page}");
    // The token ends, and the session with it.
    let id = folder.run(&["token", "ls", "--json"]).json()[0]["id"].as_str().unwrap().to_owned();
    folder.run(&["token", "revoke", &id, "--yes"]).assert(0, "revoked");
    token(&folder, &["--role", "viewer"]);
    assert_eq!(serving.http("GET", "/dashboard/consumers", &[("cookie", own)], "").0, 303);
}

/// On a server that runs: to the API, to a session that began before, and to one that would begin.
#[test]
fn a_token_that_has_ended_opens_nothing() {
    let folder = Folder::new();
    let serving = folder.serve(&["--roles", "api,dashboard"]);
    let short = token(&folder, &["--role", "viewer", "--expires", "3s"]);
    let bearer = format!("Bearer {short}");
    let headers = [("authorization", bearer.as_str())];
    assert_eq!(serving.http("GET", "/v1/consumers", &headers, "").0, 200);
    let (status, cookie) = serving.sign_in(&short);
    let own = cookie.split(';').next().unwrap();
    assert_eq!(status, 303);
    assert_eq!(serving.http("GET", "/dashboard/consumers", &[("cookie", own)], "").0, 200);
    let mut answer = (200, String::new(), String::new());
    for _ in 0..600 {
        answer = serving.http("GET", "/v1/consumers", &headers, "");
        if answer.0 != 200 {
            break;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(50));
    }
    assert!(answer.0 == 401 && answer.2.contains("unauthenticated"), "{answer:?}");
    for path in ["/v1/events", "/v1/metrics", "/v1/stream"] {
        assert_eq!(serving.http("GET", path, &headers, "").0, 401, "{path}");
    }
    assert_eq!(serving.http("GET", "/dashboard/consumers", &[("cookie", own)], "").0, 303);
    assert_eq!(serving.sign_in(&short).0, 401);
    // It was the only one. That it ended makes nobody on this machine its owner again; that it is revoked does.
    assert_eq!(serving.http("GET", "/v1/consumers", &[], "").0, 401);
    assert_eq!(serving.http("GET", "/dashboard", &[], "").0, 303);
    let rows = folder.run(&["token", "ls", "--json"]).json();
    assert!(rows.as_array().unwrap().iter().any(|row| row["state"] == "expired"), "{rows}");
    folder.run(&["token", "revoke", rows[0]["id"].as_str().unwrap(), "--yes"]).assert(0, "revoked");
    assert_eq!(serving.http("GET", "/v1/consumers", &[], "").0, 200);
}

/// Every route of the table: without a token, with too small a role, with a token for another tenant.
#[test]
fn every_route_keeps_its_door() {
    let folder = Folder::new();
    let serving = folder.serve(&["--roles", "api"]);
    let document: Value = serde_json::from_str(&serving.http("GET", "/v1/openapi.json", &[], "").2).unwrap();
    let bearer = |args: &[&str]| format!("Bearer {}", token(&folder, args));
    let (metrics, viewer) = (bearer(&["--role", "metrics"]), bearer(&["--role", "viewer"]));
    let (operator, tenant) =
        (bearer(&["--role", "operator"]), bearer(&["--role", "admin", "--tenant", "acme"]));
    let mut walked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let id = "01999999-0000-7000-8000-000000000000";
            let asked = path.replace("{tenant}", "other").replace("{id}", id).replace("{entry}", "1");
            let asked =
                asked.replace("{name}", "nobody").replace("{queue}", "none").replace("{account}", "a");
            let asked = asked.replace(&format!("messages/{id}"), "messages/1");
            let call = |bearer: Option<&str>| {
                let headers: Vec<_> = bearer.map(|bearer| ("authorization", bearer)).into_iter().collect();
                serving.http(&method.to_uppercase(), &asked, &headers, "").0
            };
            walked += 1;
            let needs = operation["description"].as_str().unwrap_or_default();
            if operation["security"] == json!([]) {
                assert!([200, 503].contains(&call(None)), "{method} {path} is open");
                continue;
            }
            assert_eq!(call(None), 401, "{method} {path} without a token");
            if needs.contains("role metrics") {
                assert_eq!(call(Some(&metrics)), 200, "{method} {path}");
                continue;
            }
            assert_eq!(call(Some(&metrics)), 403, "{method} {path} with a token for metrics");
            if needs.contains("role operator") {
                assert_eq!(call(Some(&viewer)), 403, "{method} {path} with a viewer's token");
            } else if needs.contains("role admin") {
                assert_eq!(call(Some(&operator)), 403, "{method} {path} with an operator's token");
            }
            let of_other = path.contains("{tenant}");
            if needs.contains("Not for a token") || of_other {
                assert_eq!(call(Some(&tenant)), 403, "{method} {path} with a token for another tenant");
            } else if path != "/v1/stream" {
                let answered = call(Some(&tenant));
                assert!(![401, 403, 405, 500].contains(&answered), "{method} {path} answered {answered}");
            }
        }
    }
    assert!(walked >= 60, "{walked}");
}

#[test]
fn too_many_requests_are_told_to_wait_and_read_only_is_read_only() {
    let folder = Folder::new()
        .with("POSTRIDER_HTTP__REQUESTS_PER_SECOND", "5")
        .with("POSTRIDER_HTTP__READ_ONLY", "true");
    let serving = folder.serve(&["--roles", "api,dashboard"]);
    let answers: Vec<_> = (0..40).map(|_| serving.http("GET", "/v1/consumers", &[], "")).collect();
    let refused = answers.iter().find(|(status, ..)| *status == 429).expect("a limit");
    assert!(refused.1.contains("retry-after: 1") && refused.2.contains("rate_limited"), "{refused:?}");
    assert_eq!(serving.http("GET", "/v1/health/live", &[], "").0, 200, "health is not counted");
    let (status, problem) = serving.post_event(&[], r#"{"type":"a.b","data":{}}"#);
    assert_eq!((status, problem["code"].as_str()), (403, Some("read_only")));
}

/// Whatever is wrong with a request, the answer is a problem: never bare text, and never our fault.
#[test]
fn every_route_answers_nonsense_with_a_problem() {
    let folder = Folder::new();
    let serving = folder.serve(&["--roles", "api"]);
    let document: Value = serde_json::from_str(&serving.http("GET", "/v1/openapi.json", &[], "").2).unwrap();
    let json = [("content-type", "application/json")];
    let check = |method: &str, path: &str, body: &str| {
        let (status, head, answer) = serving.http(&method.to_uppercase(), path, &json, body);
        if status >= 400 {
            assert!(status < 500, "{method} {path} answered {status}: {answer}");
            assert!(head.contains("application/problem+json"), "{method} {path}: {head}");
            let problem: Value = serde_json::from_str(&answer).unwrap();
            let told = |name: &str| !problem[name].as_str().unwrap_or_default().is_empty();
            assert!(told("code") && told("detail"), "{method} {path}: {problem}");
        }
        status
    };
    let mut refused = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let parts: Vec<&str> = path.split('/').collect();
        let filled = |with: &str| {
            let fill = |part: &&str| match (part.find('{'), part.find('}')) {
                (Some(_), Some(end)) => format!("{with}{}", &part[end + 1..]),
                _ => (*part).to_owned(),
            };
            parts.iter().map(fill).collect::<Vec<_>>().join("/")
        };
        for method in methods.as_object().unwrap().keys() {
            if path == "/v1/stream" {
                continue;
            }
            // A part of the path that is no text, one that is too long, a query and a body that are nonsense.
            for with in ["%FF", &"x".repeat(700)] {
                if path.contains('{') {
                    let status = check(method, &filled(with), "{}");
                    assert!(status >= 400, "{method} {path} took {with}");
                    refused += 1;
                }
            }
            check(method, &format!("{}?limit=many&limit=-1&nonsense=%FF", filled("1")), "{}");
            if method == "post" {
                for body in ["{", "[]", "\"\"", "{\"nonsense\": 1}", "\u{0}"] {
                    check(method, &filled("1"), body);
                }
            }
        }
    }
    assert!(refused > 40, "{refused}");
}

/// Read-only mode: every route and every form that would change something is refused, and pages say why.
#[test]
fn nothing_can_be_changed_in_read_only_mode() {
    let folder = Folder::new().with("POSTRIDER_HTTP__READ_ONLY", "true");
    let serving = folder.serve(&["--roles", "api,dashboard"]);
    let document: Value = serde_json::from_str(&serving.http("GET", "/v1/openapi.json", &[], "").2).unwrap();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys().filter(|method| *method != "get") {
            let asked = path.replace(['{', '}'], "");
            let (status, _, answer) = serving.http(&method.to_uppercase(), &asked, &[], "{}");
            let only_looks = ["/v1/plans", "/v1/ledger/{tenant}/rules/check"].contains(&path.as_str());
            assert!(
                only_looks || (status == 403 && answer.contains("read_only")),
                "{method} {path}: {answer}"
            );
        }
    }
    let (status, _, page) = serving.http("GET", "/dashboard/tokens", &[], "");
    assert!(status == 200 && page.contains("Read-only") && page.contains("disabled"), "{page}");
    let proof = page.split("name=\"proof\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let form = [("content-type", "application/x-www-form-urlencoded")];
    for path in forms().iter().filter(|path| *path != ONLY_READS) {
        let body = format!("proof={proof}&reason=x&key=k&seconds=1&role=admin");
        let (status, _, answer) = serving.http("POST", &filled(path), &form, &body);
        assert!(status == 403 && answer.contains("http.read_only"), "{path}: {status} {answer}");
    }
    assert_eq!(folder.run(&["token", "ls", "--json"]).json(), json!([]));
}

/// Every form that the pages can send, by the router itself: a form that is added is walked here too.
fn forms() -> Vec<String> {
    let source = include_str!("../../../src/dashboard.rs");
    let routes = source.lines().filter_map(|line| line.trim().strip_prefix(".route(\"")?.split_once('"'));
    let posts = routes.filter(|(path, handlers)| {
        handlers.contains("post(") && !["/dashboard/login", "/dashboard/logout"].contains(path)
    });
    posts.map(|(path, _)| path.to_owned()).collect()
}

/// The address of one, about nothing that is there.
fn filled(path: &str) -> String {
    let id = if path.contains("/letters/") { "1" } else { "01999999-0000-7000-8000-000000000000" };
    path.replace("{id}", id).replace("{name}", "nobody").replace("{tenant}", "other")
}

/// What shows and changes nothing is for everybody who may see it.
const ONLY_READS: &str = "/dashboard/ledger/{tenant}/verify";

#[test]
fn every_form_keeps_its_door() {
    let folder = Folder::new().with("POSTRIDER_HTTP__REQUESTS_PER_SECOND", "1000");
    let serving = folder.serve(&["--roles", "api,dashboard"]);
    let (viewer, tenant) =
        (token(&folder, &["--role", "viewer"]), token(&folder, &["--role", "admin", "--tenant", "acme"]));
    let own = |token: &str| serving.sign_in(token).1.split(';').next().unwrap().to_owned();
    let (viewer, tenant) = (own(&viewer), own(&tenant));
    let form = ("content-type", "application/x-www-form-urlencoded");
    let proof = |cookie: &str| {
        let page = serving.http("GET", "/dashboard/failures", &[("cookie", cookie)], "").2;
        page.split("name=\"proof\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
    };
    let (of_viewer, of_tenant) = (proof(&viewer), proof(&tenant));
    let mut walked = 0;
    for path in forms() {
        let asked = filled(&path);
        let send = |cookie: &str, proof: &str| {
            let body = format!("proof={proof}&reason=x&key=k&seconds=1&role=viewer");
            let (status, _, page) = serving.http("POST", &asked, &[("cookie", cookie), form], &body);
            (status, page)
        };
        walked += 1;
        let (status, page) = send(&viewer, "");
        assert!(status == 403 && page.contains("did not come from a page of yours"), "{path}: {status}");
        if path == ONLY_READS {
            assert_eq!(send(&tenant, &of_tenant).0, 403, "{path} of another tenant");
            continue;
        }
        let (status, page) = send(&viewer, &of_viewer);
        assert!(
            status == 403 && page.contains("the token has the role viewer; this needs"),
            "{path}: {status}"
        );
        // Dead letters and their operations are a tenant's own; everything else is of all.
        let (status, page) = send(&tenant, &of_tenant);
        if path.contains("/letters/") || path.contains("/operations") {
            assert!((400..500).contains(&status), "{path}: {status}");
        } else {
            assert!(status == 403 && page.contains("for the tenant acme alone"), "{path}: {status}");
        }
        // Nobody at all is led to the way in.
        let (status, head, _) = serving.http("POST", &asked, &[form], "reason=x");
        assert!(status == 303 && head.contains("/dashboard/login"), "{path}: {head}");
    }
    assert!(walked >= 20, "{walked}");
    let log = folder.run(&["token", "ls", "--json"]).json();
    assert_eq!(log.as_array().map(Vec::len), Some(2), "nothing was made: {log}");
}

/// What a visitor may not do is there, disabled, with the reason beside it.
#[test]
fn what_a_viewer_may_not_do_is_shown_disabled_with_the_reason() {
    let folder = Folder::new();
    folder.write(
        "postrider.toml",
        "[egress]\nallow = ['127.0.0.1', 'http']\n[migration]\nlegacy_exchange = 'old'\nevents = ['never.#']\n\
         [[exchange]]\nname = 'old'\nkind = 'fanout'\n\
         [[queue]]\nname = 'billing'\nbind = ['shop.order.*']\n[[consumer]]\nname = 'billing'\n\
         [[push]]\nname = 'mail'\nkeys = ['never.*']\nurl = 'http://127.0.0.1:1/'\n",
    );
    let at = "2026-11-15T10:00:00Z";
    let letter = json!({
        "key": "key-1", "event_id": "evt_1", "event_type": "shop.order.placed", "tenant": "acme", "aggregate_id": "order-1",
        "ordering_key": null, "consumer": "billing", "queue": "billing", "exchange": "e", "routing_key": "k",
        "reason": "rejected", "error": "no account", "error_class": null, "attempts": 1, "first_failed_at": at,
        "dead_at": at, "properties": { "message_id": "evt_1" }, "headers": {}, "body": "e30=",
    });
    folder.run_with(&["dlq", "import", "-"], &letter.to_string()).assert(0, "1 dead letter");
    let mut serving = folder.serve(&[]);
    serving.wait_for("serving");
    let viewer = token(&folder, &["--role", "viewer"]);
    let cookie = serving.sign_in(&viewer).1;
    let own = cookie.split(';').next().unwrap();
    let bearer = format!("Bearer {viewer}");
    let groups = serving.http("GET", "/v1/dlq/groups", &[("authorization", &bearer)], "").2;
    let groups: Value = serde_json::from_str(&groups).unwrap();
    let plan =
        format!("/plan?kind=replay_letters&group={}", groups["groups"][0]["fingerprint"].as_str().unwrap());
    for (page, least) in
        [("/consumers", 1), ("/push/mail", 3), ("/migration", 1), ("/letters/1", 1), (plan.as_str(), 1)]
    {
        let (status, _, text) = serving.http("GET", &format!("/dashboard{page}"), &[("cookie", own)], "");
        assert_eq!(status, 200, "{page}: {text}");
        let forms =
            text.split("<form method=\"post\"").skip(1).filter_map(|rest| rest.split("</form>").next());
        let forms: Vec<&str> = forms.filter(|form| !form.contains("/dashboard/logout")).collect();
        assert!(forms.len() >= least, "{page}: {text}");
        for form in forms {
            let told = "Not allowed: the token has the role viewer; this needs";
            assert!(form.contains(" disabled") && form.contains(told), "{page}: {form}");
        }
    }
}
