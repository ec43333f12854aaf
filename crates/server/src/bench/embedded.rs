//! The embedded default, in a file of its own that is thrown away afterwards.

use std::path::PathBuf;
use std::sync::Arc;

use postrider::embedded::EmbeddedBroker;
use postrider::relay::RelayMode;
use postrider::sqlite::{Sqlite, SqliteConfig};
use postrider::topology::{Queue, QueueName, Topology};
use postrider::{Broker, Clock};

use super::desk::Desk;
use super::processor::Processes;
use super::raw::EmbeddedRaw;
use super::relay::Rival;
use super::{Figure, Load, Part, Sizes};

/// The file, open.
pub(crate) struct Embedded {
    folder: PathBuf,
    store: Sqlite,
    broker: Arc<dyn Broker>,
    raw: EmbeddedRaw,
    queue: QueueName,
    clock: Clock,
}

impl Embedded {
    /// What is measured here. The rest needs servers.
    pub(crate) const PARTS: [Part; 6] =
        [Part::Embedded, Part::Relay, Part::Delay, Part::Consumer, Part::Letters, Part::Memory];

    /// Makes the file.
    pub(crate) async fn open(clock: &Clock) -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("postrider-bench-{}", clock.new_id()));
        let store = Sqlite::open(SqliteConfig::new(folder.join("bench.db")), clock.clone()).await?;
        let broker = Arc::new(EmbeddedBroker::open(store.clone(), clock.clone()).await?);
        let queue = QueueName::new("bench")?;
        let raw = EmbeddedRaw::open(broker.clone(), queue.clone()).await?;
        broker.declare(&Topology::default().queue(Queue::quorum(queue.clone()))).await?;
        Ok(Self { folder, store, broker, raw, queue, clock: clock.clone() })
    }

    /// Measures one part.
    pub(crate) async fn measure(
        &mut self,
        part: Part,
        load: Load,
        sizes: &Sizes,
    ) -> anyhow::Result<Vec<Figure>> {
        let desk = Desk {
            store: &self.store,
            broker: &self.broker,
            queue: &self.queue,
            clock: &self.clock,
            backend: "embedded",
            processes: Processes::default(),
        };
        let raw = &mut self.raw;
        match part {
            Part::Embedded => desk.end_to_end_of_rows(load, 0.3).await,
            Part::Relay => {
                let mut figures = Vec::new();
                for &keys in &sizes.keys {
                    let mut rival = Rival { raw, naive: None, streams: false };
                    figures.extend(desk.relay(&mut rival, load.with_keys(keys)).await?);
                }
                // The targets are for servers: here the broker is in the same file.
                Ok(figures.into_iter().map(|figure| Figure { target: None, ..figure }).collect())
            }
            Part::Delay => desk.delay(raw, load, sizes.rate, RelayMode::Poll).await,
            Part::Consumer => desk.consumers(raw, load).await,
            Part::Memory => desk.memory(load).await,
            Part::Letters => desk.letters(raw, load, sizes.letters, sizes.replays).await,
            _ => Ok(Vec::new()),
        }
    }

    /// Throws the file away.
    pub(crate) async fn remove(self) {
        self.broker.close().await;
        let _left_behind = std::fs::remove_dir_all(&self.folder);
    }
}
