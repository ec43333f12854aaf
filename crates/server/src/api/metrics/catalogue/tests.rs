//! The list and the code say the same.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::*;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every name that the code measures under, of all crates that ship.
fn measured() -> BTreeSet<String> {
    let mut folders =
        ["postrider", "ledger", "server"].map(|name| root().join("crates").join(name).join("src")).to_vec();
    let mut found = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                for kind in ["counter!(", "gauge!(", "histogram!("] {
                    for after in text.split(&format!("metrics::{kind}")).skip(1) {
                        let name =
                            after.trim_start().strip_prefix('"').and_then(|name| name.split('"').next());
                        found.extend(name.map(str::to_owned));
                    }
                }
            }
        }
    }
    found
}

#[test]
fn every_metric_of_the_code_is_listed_and_no_other() {
    let listed: BTreeSet<_> = METRICS.iter().map(|metric| metric.name.to_owned()).collect();
    assert_eq!(listed.len(), METRICS.len(), "one is listed twice");
    let measured = measured();
    let missing: Vec<_> = measured.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&measured).collect();
    assert!(missing.is_empty() && gone.is_empty(), "add to the catalogue: {missing:?}; remove: {gone:?}");
}

#[test]
fn names_have_their_units() {
    for metric in METRICS {
        assert_eq!(metric.name.ends_with("_total"), metric.kind == Counter, "{}", metric.name);
        assert!(metric.kind != Histogram || metric.name.ends_with("_seconds"), "{}", metric.name);
        assert!(metric.help.ends_with('.'), "{}", metric.name);
    }
}

#[test]
fn the_page_for_people_is_the_one_that_is_generated() {
    let page = std::fs::read_to_string(root().join("docs/metrics.md")).unwrap();
    assert!(page == markdown(), "run: postrider generate metrics > docs/metrics.md");
}
