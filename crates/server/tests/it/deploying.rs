//! What stands in `deploy/` and `compose.yaml`, by the tools that read such files and by the binary that they start.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::process::{Folder, PYTHON};

/// A file of the repository.
fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The documents of a YAML file, by Python's reader.
fn documents(path: &str) -> Vec<Value> {
    let read = "import sys, yaml, json; json.dump(list(yaml.safe_load_all(sys.stdin)), sys.stdout)";
    let mut python = Command::new(PYTHON);
    let mut python = python
        .args(["-c", read])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    python.stdin.take().unwrap().write_all(file(path).as_bytes()).unwrap();
    let ran = python.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{path}: {said}; scripts/install-servers installs python3-yaml");
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// How long `serve` may take to end, by default.
fn drain_ms() -> u64 {
    let defaults = file("config.default.toml");
    let line = defaults.lines().find_map(|line| line.strip_prefix("drain_ms = ")).unwrap();
    line.parse().unwrap()
}

/// The binary takes these words: with `--help` at their end it starts nothing.
fn takes(words: &[&str]) {
    Folder::new().run(&[words, &["--help"]].concat()).assert(0, "Usage");
}

#[test]
fn systemd_takes_the_unit_and_it_starts_what_there_is() {
    let unit = file("deploy/systemd/postrider.service");
    let setting = |name: &str| {
        let found = unit.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        found.unwrap_or_else(|| panic!("the unit has no {name}")).to_owned()
    };
    // The binary is where this test was built, not where the unit wants it.
    let binary = env!("CARGO_BIN_EXE_postrider");
    let folder = tempfile::tempdir().unwrap();
    let place: PathBuf = folder.path().join("postrider.service");
    std::fs::write(&place, unit.replace("/usr/bin/postrider", binary)).unwrap();
    let ran = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&place).output();
    let ran =
        ran.unwrap_or_else(|error| panic!("systemd-analyze: {error}; scripts/install-servers installs it"));
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    // What it ignores is no failure to it.
    assert!(ran.status.success() && !said.contains("postrider.service"), "{said}");

    let start = setting("ExecStart");
    let words: Vec<&str> = start.split(' ').skip(1).collect();
    takes(&words);
    let stops = setting("TimeoutStopSec").parse::<u64>().unwrap() * 1000;
    assert!(stops > drain_ms(), "it is killed after {stops} ms, before it has drained");
    let variable = setting("Environment");
    let (name, value) = variable.split_once('=').unwrap();
    Folder::new().with(name, value).run(&["topology", "render"]).assert(0, "");
    Folder::new().with(name, "nonsense").run(&["topology", "render"]).assert(2, "log");
    // A mistake in the configuration is not tried again.
    assert!(setting("RestartPreventExitStatus").split(' ').any(|code| code == "2"));
}

#[test]
fn compose_starts_the_binary_with_settings_that_it_knows() {
    let compose = documents("compose.yaml").remove(0);
    let services = compose["services"].as_object().unwrap();
    let mut ours = 0;
    for (name, service) in services.iter().filter(|(_, service)| service["image"] == "postrider") {
        ours += 1;
        let words: Vec<_> = service["command"]
            .as_array()
            .map_or(vec!["serve"], |words| words.iter().map(|word| word.as_str().unwrap()).collect());
        takes(&words);
        let mut folder = Folder::new();
        for (variable, value) in service["environment"].as_object().unwrap() {
            // What the shell puts in: ${NAME:?what to do}
            let mut value = value.as_str().unwrap().to_owned();
            while let (Some(from), Some(to)) = (value.find("${"), value.find('}')) {
                value.replace_range(from..=to, "hunter2");
            }
            folder = folder.with(variable, &value);
        }
        let ran = folder.run(&["topology", "render"]).assert(0, "using PostgreSQL");
        assert!(ran.err.contains("rabbitmq1"), "{name}: {}", ran.err);
        assert!(!ran.err.contains("hunter2"), "{name}: {}", ran.err);
        for needed in service["depends_on"].as_object().unwrap().keys() {
            assert!(services.contains_key(needed), "{name} waits for {needed}, which is not there");
        }
        if let Some(grace) = service["stop_grace_period"].as_str() {
            let seconds: u64 = grace.trim_end_matches('s').parse().unwrap();
            assert!(seconds * 1000 > drain_ms(), "{name} is killed after {grace}");
        }
    }
    assert_eq!(ours, 2, "{services:?}");
    // No port is open to other machines, and nothing has a password of its own.
    for (name, service) in services {
        for port in service["ports"].as_array().into_iter().flatten() {
            assert!(port.as_str().unwrap().starts_with("127.0.0.1:"), "{name}: {port}");
        }
        for (variable, value) in service["environment"].as_object().into_iter().flatten() {
            let secret = ["PASS", "COOKIE"].iter().any(|word| variable.contains(word));
            assert!(!secret || value.as_str().unwrap().starts_with("${"), "{name}: {variable}");
        }
    }
    // Doctor is to have nothing against this Redis.
    let redis = services["redis"]["command"].as_str().unwrap();
    assert!(redis.contains("--maxmemory ") && redis.contains("volatile-ttl"), "{redis}");
}

#[test]
fn kubernetes_starts_the_binary_with_a_configuration_that_it_takes() {
    let all = [documents("deploy/kubernetes/postrider.yaml"), documents("deploy/kubernetes/migrate.yaml")];
    let all: Vec<Value> = all.concat();
    let kind = |kind: &str| {
        all.iter().find(|one| one["kind"] == kind).unwrap_or_else(|| panic!("there is no {kind}"))
    };
    for one in &all {
        assert_eq!(one["metadata"]["namespace"], "postrider", "{}", one["kind"]);
    }
    let folder = Folder::new();
    folder.write("postrider.toml", kind("ConfigMap")["data"]["postrider.toml"].as_str().unwrap());
    folder.run(&["topology", "render"]).assert(0, "");
    // It listens to other machines, so it wants a token before it starts; nothing else is wrong with it.
    folder.run(&["serve"]).assert(2, "there is no token yet");

    let pod = &kind("Deployment")["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let words = |container: &Value| -> Vec<String> {
        container["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    for container in [container, &kind("Job")["spec"]["template"]["spec"]["containers"][0]] {
        let words = words(container);
        takes(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let image = format!("postrider:{}", env!("CARGO_PKG_VERSION"));
        assert_eq!(container["image"], image, "both are of this version");
    }
    let mount = container["volumeMounts"][0]["mountPath"].as_str().unwrap();
    assert!(words(container).iter().any(|word| *word == format!("{mount}/postrider.toml")));
    let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace * 1000 > drain_ms(), "it is killed after {grace} s");
    // Its service's links would be settings that nobody knows (POSTRIDER_PORT).
    assert_eq!(pod["enableServiceLinks"], false);

    let document: Value = folder.run(&["generate", "openapi"]).assert(0, "").json();
    for probe in ["livenessProbe", "startupProbe", "readinessProbe"] {
        let asked = &container[probe]["httpGet"];
        assert!(document["paths"].get(asked["path"].as_str().unwrap()).is_some(), "{probe}: {asked}");
        assert_eq!(asked["port"], "http");
    }
    let port = &container["ports"][0];
    assert_eq!((&port["name"], &port["containerPort"]), (&"http".into(), &7070.into()));
    assert_eq!(kind("Service")["spec"]["ports"][0]["targetPort"], "http");
    let labels = &kind("Deployment")["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&kind("Service")["spec"]["selector"], labels);
    assert_eq!(&kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(&kind("Deployment")["spec"]["selector"]["matchLabels"], labels);
    let scraped = &kind("Deployment")["spec"]["template"]["metadata"]["annotations"]["prometheus.io/path"];
    assert!(document["paths"].get(scraped.as_str().unwrap()).is_some(), "{scraped}");
}

#[test]
fn the_image_is_built_by_the_tool_chain_that_is_asked_for() {
    let (image, manifest) = (file("deploy/Dockerfile"), file("Cargo.toml"));
    let wanted = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")).unwrap();
    let wanted = wanted.trim_end_matches('"');
    let number = |text: &str| -> Vec<u32> { text.split('.').filter_map(|part| part.parse().ok()).collect() };
    let from = image.lines().find_map(|line| line.strip_prefix("FROM rust:")).unwrap();
    let has = from.split('-').next().unwrap();
    assert!(number(has) >= number(wanted)[..2].to_vec(), "the image has Rust {has}, this needs {wanted}");
    let profile = image.split("--profile ").nth(1).unwrap().split(' ').next().unwrap();
    assert!(manifest.contains(&format!("[profile.{profile}]")), "there is no profile {profile}");
    assert!(image.contains("ENTRYPOINT [\"/usr/bin/postrider\"]") && image.contains("CMD [\"serve\"]"));
}
