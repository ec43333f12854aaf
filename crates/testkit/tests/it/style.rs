//! The habits of the house that a machine can check.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files below, by their path from the root; build output and hidden folders left out.
fn files(below: &str, ending: &str) -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.join(below)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" {
                    folders.push(path);
                }
            } else if name.ends_with(ending) {
                let shown = path.strip_prefix(&root).unwrap().to_string_lossy().into_owned();
                if let Ok(text) = fs::read_to_string(&path) {
                    found.push((shown, text));
                }
            }
        }
    }
    found.sort();
    found
}

fn assert_none(broken: &[String], rule: &str) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

#[test]
fn every_file_says_first_what_it_is() {
    let broken: Vec<_> = files("crates", ".rs")
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//! "))
        .map(|(path, _)| path)
        .collect();
    assert_none(&broken, "a file begins with a line of //! that says what it is");
}

#[test]
fn files_hold_one_idea() {
    let broken: Vec<_> = files("crates", ".rs")
        .into_iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > 400)
        .map(|(path, lines)| format!("{path}: {lines} lines"))
        .collect();
    assert_none(&broken, "at 400 lines, ask what the second idea in the file is");
}

#[test]
fn drivers_are_named_in_their_own_folders_only() {
    let homes: [(&str, &[&str]); 3] = [
        ("lapin::", &["/rabbitmq", "/testkit/", "/tests/", "bench"]),
        (
            "sqlx::",
            &["/postgres", "/sqlite", "/embedded", "/testkit/", "/tests/", "/examples/", "bench", "demo"],
        ),
        ("redis::", &["/redis", "/testkit/", "/tests/", "bench"]),
    ];
    let mut broken = Vec::new();
    for (path, text) in files("crates", ".rs") {
        if path.ends_with("tests/it/style.rs") {
            continue;
        }
        for (driver, allowed) in homes {
            let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let named = code.filter(|line| line.contains(driver) && !line.contains(&format!("::{driver}")));
            if named.count() > 0 && !allowed.iter().any(|home| path.contains(home)) {
                broken.push(format!("{path} names {driver}"));
            }
        }
    }
    assert_none(&broken, "a driver crate's name stands only in its own folder");
}

#[test]
fn we_never_promise_what_nobody_can_keep() {
    let forbidden = ["exactly-once", "delivery"].join(" ");
    let everything = [".rs", ".md", ".toml", ".sql"].into_iter().flat_map(|ending| files(".", ending));
    let broken: Vec<_> = everything
        .filter(|(_, text)| text.to_lowercase().contains(&forbidden))
        .map(|(path, _)| path)
        .collect();
    assert_none(&broken, "effects happen once; deliveries do not");
}

#[test]
fn modules_are_named_for_what_they_do() {
    let broken: Vec<_> = files("crates", ".rs")
        .into_iter()
        .map(|(path, _)| path)
        .filter(|path| {
            let stem = Path::new(path).file_stem().unwrap().to_string_lossy().into_owned();
            ["util", "utils", "common", "helper", "helpers", "manager", "base", "misc"]
                .contains(&stem.as_str())
        })
        .collect();
    assert_none(&broken, "say what it does");
}

/// What a newcomer types first must compile: the README's first event is in an example that does.
#[test]
fn the_readme_shows_lines_that_compile() {
    // As rustfmt would not have it in a README: without comments, spaces, braces and the commas before them.
    let bare = |text: &str| -> String {
        let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        code.flat_map(str::chars).filter(|c| !c.is_whitespace() && !"{},".contains(*c)).collect()
    };
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let shown = readme.split("```rust\n").nth(1).and_then(|block| block.split("```").next()).unwrap();
    let example = fs::read_to_string(root().join("crates/postrider/examples/01_first_event.rs")).unwrap();
    let (shown, example) = (bare(shown), bare(&example));
    let missing: Vec<_> = shown.split(';').filter(|statement| !example.contains(statement)).collect();
    assert!(missing.is_empty(), "the example 01_first_event has other lines: {missing:?}");
}
