//! Memory over time: one relay and one consumer that go on working, and what our process holds after more and more events.

use std::fs;

use super::desk::Desk;
use super::effects::Effects;
use super::{Figure, Load};

/// How often the load goes through.
const TIMES: usize = 10;

impl<S: Effects> Desk<'_, S> {
    /// The most that was held in the second half, over the most in the first: what stays behind of every event would show. Nothing where
    /// the system does not tell.
    pub(super) async fn memory(&self, load: Load) -> anyhow::Result<Vec<Figure>> {
        self.store.make_effects().await?;
        let line = self.line(self.broker.clone(), S::effects(100))?;
        let mut held = Vec::new();
        for time in 1..=TIMES {
            self.commit_all(load).await?;
            line.applied(time * load.events, self.clock).await?;
            if let Some(mib) = fs::read_to_string("/proc/self/status").ok().as_deref().and_then(resident) {
                eprintln!("after {} events: {mib:.0} MiB", time * load.events);
                held.push(mib);
            }
        }
        line.end().await?;
        let (first, second) = held.split_at(held.len() / 2);
        let most = |held: &[f64]| held.iter().copied().reduce(f64::max);
        let pair = most(second).zip(most(first));
        let name = format!(
            "memory of commit to effect, {} events, the second half over the first",
            TIMES * load.events
        );
        let figure = Figure::median(name, self.backend, "MiB", pair.into_iter().collect());
        Ok(figure.map(|figure| figure.aims_at(1.1)).into_iter().collect())
    }
}

/// What is resident by a process's status, in MiB.
fn resident(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()? / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_resident_is_read_from_a_status() {
        assert_eq!(resident("Name:\tpostrider\nVmHWM:\t 9999 kB\nVmRSS:\t    2048 kB\n"), Some(2.0));
        assert_eq!(resident("Name:\tpostrider\n"), None);
    }
}
