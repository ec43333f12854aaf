//! What open dashboards cost the relay, and how long their pages take with a long history behind them. They are served by a process
//! of its own, as people have it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use futures_util::future::try_join_all;
use postrider::postgres::Postgres;
use postrider::relay::RelayMode;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::desk::Desk;
use super::table::{add_others, add_published};
use super::triage::{ALLOWED_MS, median};
use super::{Figure, Load, Raw};

/// Open tabs.
const TABS: usize = 20;
/// What a tab costs shows over several seconds: so many times the load is relayed.
const LONGER: usize = 5;
/// Bytes in each row of history: what is behind does not have to be read.
const HISTORY_BYTES: usize = 100;
/// What is looked at, and what it is.
const PAGES: [(&str, &str); 13] = [
    ("the newest events", "/v1/events?limit=50"),
    ("events of one aggregate", "/v1/events?aggregate_type=bench.item&aggregate_id=item-7&limit=50"),
    ("events of a tenant that has none", "/v1/events?tenant=nobody&limit=50"),
    ("the newest jobs", "/v1/progress?limit=50"),
    ("jobs of a tenant that has none", "/v1/progress?tenant=nobody&limit=50"),
    ("jobs that are not done", "/v1/progress?status=processing&limit=50"),
    ("the newest of the audit log", "/v1/audit-log?limit=50"),
    ("what somebody did who did nothing", "/v1/audit-log?actor=nobody&limit=50"),
    ("the newest operations", "/v1/operations?limit=50"),
    ("the dashboard's overview", "/dashboard"),
    ("the dashboard's events", "/dashboard/events"),
    ("the dashboard's outbox", "/dashboard/outbox"),
    ("the dashboard's jobs", "/dashboard/jobs"),
];

impl Desk<'_, Postgres> {
    /// The relay beside open dashboards over the relay alone; then pages with so many rows in the outbox, over what they may take.
    pub(super) async fn dashboard(
        &self,
        raw: &mut dyn Raw,
        config: Option<&Path>,
        load: Load,
        rows: usize,
    ) -> anyhow::Result<Vec<Figure>> {
        let served = Served::start(config).await?;
        let client = reqwest::Client::builder().no_proxy().build()?;
        let load = Load { events: LONGER * load.events, ..load };
        let mut rounds = Vec::new();
        for round in 1..=load.rounds {
            self.fill_outbox(load).await?;
            let alone = self.drain(load, RelayMode::Poll).await?;
            alone.tell(round, "relay alone", load.events);
            raw.empty().await?;
            self.fill_outbox(load).await?;
            let tabs = try_join_all((0..TABS).map(|_| Tab::open(&client, &served.address))).await?;
            let watched = self.drain(load, RelayMode::Poll).await?;
            watched.tell(round, "relay beside dashboards", load.events);
            tabs.into_iter().try_for_each(Tab::close)?;
            raw.empty().await?;
            rounds.push((watched.rate, alone.rate));
        }
        let name = format!("relay with {TABS} dashboards open, over the relay alone");
        let figure = Figure::median(name, self.backend, "/s", rounds);
        let mut figures: Vec<_> = figure.map(|figure| figure.aims_at(0.97)).into_iter().collect();
        add_published(self.store, rows, HISTORY_BYTES, self.queue).await?;
        add_others(self.store, rows, self.queue).await?;
        for (what, path) in PAGES {
            let url = format!("http://{}{path}", served.address);
            let took = median(self.clock, async || {
                client.get(&url).send().await?.error_for_status()?.bytes().await.map(drop)
            });
            let name = format!("{what}, {rows} rows, over the {ALLOWED_MS} ms allowed");
            let figure = Figure::median(name, self.backend, "ms", vec![(took.await?, ALLOWED_MS)]);
            figures.extend(figure.map(|figure| figure.aims_at(1.0)));
        }
        Ok(figures)
    }
}

/// This binary, which serves the dashboard. Ended when dropped.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    async fn start(config: Option<&Path>) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(file) = config {
            command.arg("--config").arg(file);
        }
        command.args(["serve", "--roles", "api,dashboard", "--listen", "127.0.0.1:0"]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let said = child.stderr.take();
        let mut served = Self { child, address: String::new() };
        let (listens, listening) = oneshot::channel();
        // To its end, or it would block on what nobody reads.
        thread::spawn(move || {
            let (mut listens, mut heard) = (Some(listens), Vec::new());
            for line in said.into_iter().flat_map(|said| BufReader::new(said).lines()).map_while(Result::ok) {
                match line.split_once("listening on http://") {
                    Some((_, address)) => {
                        let _gone = listens.take().map(|listens| listens.send(Ok(address.to_owned())));
                    }
                    None => heard.push(line),
                }
            }
            let _gone = listens.map(|listens| listens.send(Err(heard.join("\n"))));
        });
        let address = listening.await?;
        served.address = address.map_err(|said| anyhow::anyhow!("the dashboard is not served: {said}"))?;
        Ok(served)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _code = self.child.wait();
    }
}

/// An overview that somebody left open.
struct Tab {
    live: JoinHandle<reqwest::Result<()>>,
}

impl Tab {
    async fn open(client: &reqwest::Client, address: &str) -> anyhow::Result<Self> {
        let page = format!("http://{address}/dashboard");
        client.get(&page).send().await?.error_for_status()?.bytes().await?;
        let mut stream = client.get(format!("{page}/stream")).send().await?.error_for_status()?;
        let live = tokio::spawn(async move {
            while stream.chunk().await?.is_some() {}
            Ok(())
        });
        Ok(Self { live })
    }

    /// Fails if it was not live all the time.
    fn close(self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.live.is_finished(), "a dashboard ended while it was open");
        self.live.abort();
        Ok(())
    }
}
