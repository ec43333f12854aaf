//! A real browser for tests: Debian's chromium, driven over WebDriver. Its process ends with the test.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::servers::http;
use crate::servers::ports::Port;
use crate::servers::process::{Launch, Process};
use crate::servers::wait::Patience;

/// Long enough for a busy machine.
const LIMIT: Duration = Duration::from_mins(2);
/// How WebDriver names an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// An open window.
pub struct Browser {
    base: String,
    session: String,
    driver: Process,
    _port: Port,
    _folder: TempDir,
}

/// How the page is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// On a light page.
    Light,
    /// On a dark page.
    Dark,
}

impl Browser {
    /// Opens a window of its own, as a visitor who was never here.
    pub async fn open() -> Result<Self> {
        let (port, folder) = (Port::claim()?, tempfile::tempdir()?);
        let driver = Process::start(Launch {
            name: "chromedriver".to_owned(),
            program: "chromedriver".into(),
            args: vec![format!("--port={}", port.number()).into()],
            env: vec![("HOME", folder.path().into())],
            folder: folder.path().to_owned(),
            log: folder.path().join("driver.log"),
            user: None,
            private: true,
        })?;
        let base = format!("http://127.0.0.1:{}", port.number());
        let patience = Patience::new("chromedriver", LIMIT);
        while http::request("GET", &base, "/status", None).await.is_err() {
            driver
                .pause_before_look(&patience)
                .await
                .context("scripts/install-servers installs chromium-driver")?;
        }
        let data = folder.path().join("data");
        let args = [
            "--headless=new".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--hide-scrollbars".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            "--force-color-profile=srgb".to_owned(),
            "--window-size=1360,900".to_owned(),
            format!("--user-data-dir={}", data.display()),
        ];
        let wanted = json!({ "browserName": "chrome", "goog:chromeOptions": { "args": args } });
        let asked = json!({ "capabilities": { "alwaysMatch": wanted } });
        let answer = call("POST", &base, "/session", Some(&asked)).await?;
        let session = answer["sessionId"].as_str().context("a session without an id")?.to_owned();
        Ok(Self { base, session, driver, _port: port, _folder: folder })
    }

    async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        call(method, &self.base, &format!("/session/{}{path}", self.session), body).await
    }

    /// Goes to an address and waits until it is loaded.
    pub async fn go(&self, url: &str) -> Result<()> {
        self.ask("POST", "/url", Some(&json!({ "url": url }))).await.map(drop)
    }

    /// Where it is.
    pub async fn address(&self) -> Result<String> {
        Ok(self.ask("GET", "/url", None).await?.as_str().unwrap_or_default().to_owned())
    }

    /// Runs a script in the page; what it returns.
    pub async fn run(&self, script: &str) -> Result<Value> {
        self.ask("POST", "/execute/sync", Some(&json!({ "script": script, "args": [] }))).await
    }

    /// Everything that can be read on the page.
    pub async fn text(&self) -> Result<String> {
        Ok(self.run("return document.body.innerText").await?.as_str().unwrap_or_default().to_owned())
    }

    /// Waits until the page says this.
    pub async fn wait_for(&self, text: &str) -> Result<()> {
        let patience = Patience::new(format!("{text:?} on the page"), LIMIT);
        loop {
            let said = self.text().await.unwrap_or_default();
            if said.contains(text) {
                return Ok(());
            }
            patience.pause().await.with_context(|| format!("it says:\n{said}"))?;
        }
    }

    /// Clicks the first thing that this selector finds; waits until there is one.
    pub async fn click(&self, selector: &str) -> Result<()> {
        self.on(selector, "click", &json!({})).await
    }

    /// Writes into a field.
    pub async fn fill(&self, selector: &str, text: &str) -> Result<()> {
        self.on(selector, "value", &json!({ "text": text })).await
    }

    /// Clicks a link or button by what it says.
    pub async fn press(&self, text: &str) -> Result<()> {
        let quoted = text.replace('\'', "");
        let found = format!("//*[self::a or self::button][contains(normalize-space(.), '{quoted}')]");
        self.act("xpath", &found, "click", &json!({})).await
    }

    async fn on(&self, selector: &str, action: &str, body: &Value) -> Result<()> {
        self.act("css selector", selector, action, body).await
    }

    /// What lives may be replaced between finding and touching it: then it is found again.
    async fn act(&self, using: &str, value: &str, action: &str, body: &Value) -> Result<()> {
        let patience = Patience::new(format!("{value} to {action}"), LIMIT);
        let find = json!({ "using": using, "value": value });
        loop {
            let tried = async {
                let found = self.ask("POST", "/element", Some(&find)).await?;
                let element = found[ELEMENT].as_str().context("an element without a name")?;
                self.ask("POST", &format!("/element/{element}/{action}"), Some(body)).await
            };
            match tried.await {
                Ok(_) => return Ok(()),
                Err(error) => patience.pause().await.with_context(|| format!("{error:#}"))?,
            }
        }
    }

    /// How the next pages are shown, and how wide.
    pub async fn look(&self, look: Look, width: u32, height: u32) -> Result<()> {
        let scheme = if look == Look::Dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        let sized =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        for (command, params) in
            [("Emulation.setEmulatedMedia", media), ("Emulation.setDeviceMetricsOverride", sized)]
        {
            self.ask("POST", "/goog/cdp/execute", Some(&json!({ "cmd": command, "params": params }))).await?;
        }
        Ok(())
    }

    /// Writes what is seen as a picture.
    pub async fn screenshot(&self, file: &Path) -> Result<()> {
        let picture = self.ask("GET", "/screenshot", None).await?;
        let bytes = BASE64_STANDARD.decode(picture.as_str().unwrap_or_default())?;
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(std::fs::write(file, bytes)?)
    }

    /// Closes the window.
    pub async fn close(self) -> Result<()> {
        self.ask("DELETE", "", None).await?;
        self.driver.kill()
    }
}

async fn call(method: &str, base: &str, path: &str, body: Option<&Value>) -> Result<Value> {
    let response = http::request(method, base, path, body).await?;
    let answer: Value = serde_json::from_slice(&response.body).context("WebDriver answered no JSON")?;
    if response.status != 200 {
        bail!("{} {}", answer["value"]["error"], answer["value"]["message"]);
    }
    Ok(answer["value"].clone())
}
