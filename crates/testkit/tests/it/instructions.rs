//! How many instructions the work takes that is done once for every event: a guard against slowness that no clock disturbs.
//!
//! Counted by callgrind in the build that the tests use, so the numbers say nothing about speed; that they stay says that
//! nothing was added. Another compiler makes other numbers: then they are taken anew, and the difference is read.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_postrider-hot-paths");
/// So many hundredths over the baseline are no news.
const TOLERANCE: u64 = 5;
const TIMES: u64 = 200;

/// What an event cost when somebody looked last.
#[derive(serde::Deserialize)]
struct Baseline {
    compiler: String,
    instructions: BTreeMap<String, u64>,
}

#[test]
fn an_event_costs_no_more_instructions_than_it_did() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/instructions.toml");
    let written = std::fs::read_to_string(&file).unwrap();
    let Baseline { compiler, instructions } = toml::from_str(&written).unwrap();
    let counted: BTreeMap<_, _> = instructions.keys().map(|path| (path, per_event(path))).collect();
    let lines: Vec<_> = counted.iter().map(|(path, count)| format!("{path} = {count}")).collect();
    let now = format!("compiler = {:?}\n\n[instructions]\n{}", this_compiler(), lines.join("\n"));
    let grown: Vec<_> = instructions
        .iter()
        .filter(|(path, before)| counted[path] * 100 > **before * (100 + TOLERANCE))
        .map(|(path, before)| format!("{path}: {before} before, {} now", counted[path]))
        .collect();
    println!("{now}");
    if compiler == this_compiler() {
        assert!(
            grown.is_empty(),
            "an event costs more than it did; where that is meant, {} becomes\n{now}\n{}",
            file.display(),
            grown.join("\n")
        );
    }
}

/// Instructions of one round: those of many rounds without those of none.
fn per_event(path: &str) -> u64 {
    (instructions(path, TIMES) - instructions(path, 0)) / TIMES
}

fn instructions(path: &str, times: u64) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let ran = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=out"])
        .args([PROGRAM, path, &times.to_string()])
        .current_dir(folder.path())
        .output()
        .expect("valgrind is installed by scripts/install-servers");
    let text = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{text}");
    let collected = text.lines().find_map(|line| line.split("Collected : ").nth(1));
    collected.unwrap_or_else(|| panic!("{text}")).trim().parse().unwrap()
}

fn this_compiler() -> String {
    let ran = Command::new("rustc").arg("--version").output().unwrap();
    String::from_utf8_lossy(&ran.stdout).trim().to_owned()
}
