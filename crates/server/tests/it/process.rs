//! Runs the binary as people and scripts do.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use postrider::Clock;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Long enough for a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// The system's, which has the modules that apt installs. Another one may be before it on the PATH.
pub(crate) const PYTHON: &str = "/usr/bin/python3";

/// A folder in which the binary runs, with an environment of its own.
pub(crate) struct Folder {
    folder: TempDir,
    environment: Vec<(String, String)>,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), environment: Vec::new() }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
        command.args(args).current_dir(self.folder.path()).env_clear().envs(self.environment.clone());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, "")
    }

    /// Runs a command that reads this from stdin.
    pub(crate) fn run_with(&self, args: &[&str], input: &str) -> Ran {
        let mut child = self.command(args).spawn().unwrap();
        // A command that ends before it has read everything is no failure of the test.
        let _gone = child.stdin.take().unwrap().write_all(input.as_bytes());
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let (out, err) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
        Ran { code: status.code().unwrap_or(-1), out, err }
    }

    /// Starts a command that goes on.
    pub(crate) fn start(&self, args: &[&str]) -> Serving {
        let mut child = self.command(args).spawn().unwrap();
        let lines = read_lines(child.stderr.take().unwrap());
        Serving { child, lines, said: Vec::new(), address: String::new() }
    }

    /// Starts `serve` on a free port and waits until it listens.
    pub(crate) fn serve(&self, more: &[&str]) -> Serving {
        let args = [&["serve", "--listen", "127.0.0.1:0"], more].concat();
        let mut serving = self.start(&args);
        let line = serving.wait_for("listening on http://");
        // In a log of JSON the address has a quote behind it.
        let address = line.split("://").nth(1).unwrap();
        serving.address = address.split('"').next().map(str::to_owned).unwrap();
        serving
    }
}

impl Ran {
    /// The data on stdout.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    pub(crate) fn assert(self, code: i32, said: &str) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.err.contains(said) || self.out.contains(said), "{said:?} is not in {self:?}");
        self
    }
}

/// A running `serve`. Killed when the test ends.
pub(crate) struct Serving {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
    pub(crate) address: String,
}

impl Serving {
    /// What it said on stderr, as far as it was waited for.
    pub(crate) fn said(&self) -> &[String] {
        &self.said
    }

    /// Waits for a line on stderr. What it has waited for before is not looked at again.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let clock = Clock::system();
        // Whoever warns of something every second would be listened to for ever.
        let until = clock.monotonic() + 3 * PATIENCE;
        loop {
            let left = until.saturating_sub(clock.monotonic()).min(PATIENCE);
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("{text:?} did not come; it said {:#?}", self.said)
            };
            self.said.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The most memory it ever had, in KiB.
    pub(crate) fn most_memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Waits for the end and returns its exit code.
    pub(crate) fn ended(mut self) -> (i32, Vec<String>) {
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.said.push(line);
        }
        let code = self.child.wait().unwrap().code().unwrap_or(-1);
        (code, std::mem::take(&mut self.said))
    }

    /// One HTTP request: the status, the headers, the body.
    pub(crate) fn http(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let headers: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let headers = headers.concat();
        let length = body.len();
        let host = &self.address;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: {length}\r\n"
        );
        // The server may answer before it has read a body that it refuses.
        let _refused = stream.write_all(format!("{head}{headers}\r\n{body}").as_bytes());
        let mut answer = Vec::new();
        let _reset = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_lowercase(), body.to_owned())
    }

    pub(crate) fn post_event(&self, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
        let headers = [&[("content-type", "application/json")], headers].concat();
        let (status, _, body) = self.http("POST", "/v1/events", &headers, body);
        (status, serde_json::from_str(&body).unwrap())
    }

    /// Signs in to the dashboard by pasting a token: the status, and the cookie with all it says.
    pub(crate) fn sign_in(&self, token: &str) -> (u16, String) {
        let form = [("content-type", "application/x-www-form-urlencoded")];
        let (status, head, _) = self.http("POST", "/dashboard/login", &form, &format!("token={token}"));
        let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        (status, cookie.unwrap_or_default().to_owned())
    }

    /// A request that is never finished, for as long as the stream lives.
    pub(crate) fn hold_a_request(&self) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = "POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
        stream.write_all(head.as_bytes()).unwrap();
        // Another request is answered only after the server has seen this one's connection.
        assert_eq!(self.http("GET", "/v1/health/live", &[], "").0, 200);
        stream
    }

    /// Asks until the metrics say so.
    pub(crate) fn wait_for_metric(&self, line: &str) {
        for _ in 0..600 {
            let (status, _, text) = self.http("GET", "/v1/metrics", &[], "");
            assert_eq!(status, 200, "{text}");
            if text.lines().any(|found| found == line) {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(100));
        }
        panic!("{line} did not come");
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _code = self.child.wait();
    }
}

fn read_lines(stderr: ChildStderr) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}
