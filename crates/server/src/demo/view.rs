//! The live view: a screen on a terminal, a line now and then elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use postrider::Clock;
use postrider::audit::Account;
use postrider::runtime::Running;
use ratatui::crossterm::event::{self, Event as Input, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Gauge, Paragraph, Row, Table, Wrap};
use tokio_util::sync::CancellationToken;

use super::shop::ShopStore;
use super::{Options, PATIENCE};

/// When the watcher left.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// When everything had taken effect.
    Done,
    /// Before that.
    Early,
    /// When nothing more took effect, though not everything had.
    Stuck,
}

/// What is shown at one moment.
struct Moment {
    placed: u64,
    published: u64,
    paused: bool,
    rows: Vec<(Account, u64)>,
    done: bool,
    seconds: f64,
}

/// Shows how it goes until everything has taken effect or somebody leaves.
pub(super) async fn watch<S: ShopStore>(
    running: &Running<S>,
    clock: &Clock,
    options: &Options,
    placed: &Arc<AtomicU64>,
    stop: &CancellationToken,
) -> anyhow::Result<Left> {
    let mut screen = if options.live { Some(Screen::open()) } else { None };
    let start = clock.monotonic();
    let mut said = Duration::ZERO;
    let mut seen = start;
    let mut moving = Moving { settled: 0, at: start };
    let mut finished = false;
    loop {
        let asked = clock.monotonic();
        let moment = match look(running, placed, options, clock.since(start).as_secs_f64()).await {
            Ok(moment) => moment,
            // A server that is away comes back; the shop goes on by itself.
            Err(error) if clock.since(seen) < PATIENCE && !stop.is_cancelled() => {
                tracing::warn!(%error, "cannot count for a moment");
                // What could not be counted may have moved, and has its time again once it can.
                moving.at = clock.monotonic();
                clock.sleep(Duration::from_millis(500)).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        seen = clock.monotonic();
        finished |= moment.done;
        let mut left = false;
        if let Some(screen) = &mut screen {
            left = screen.draw(&moment, options)?;
        } else if !options.quiet && (moment.done || clock.since(said) >= Duration::from_secs(2)) {
            said = clock.monotonic();
            eprintln!("{}", one_line(&moment, options));
        }
        if moment.done && (options.exit || screen.is_none()) {
            return Ok(Left::Done);
        }
        if left || stop.is_cancelled() {
            return Ok(if moment.done { Left::Done } else { Left::Early });
        }
        let still = moving.still_for(&moment, options, seen);
        if !finished && still > PATIENCE {
            return Ok(Left::Stuck);
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = clock.sleep(pause(seen.saturating_sub(asked))) => {}
        }
    }
}

/// How long to wait until everything is counted again. The more there is, the longer that takes, and the less is left for the shop.
fn pause(counting: Duration) -> Duration {
    counting.saturating_mul(4).clamp(Duration::from_millis(50), Duration::from_secs(10))
}

/// What has taken effect so far, and since when it is as much.
struct Moving {
    settled: u64,
    at: Duration,
}

impl Moving {
    /// How long nothing more has taken effect since the last order was placed.
    fn still_for(&mut self, moment: &Moment, options: &Options, now: Duration) -> Duration {
        let settled: u64 = moment.rows.iter().map(|(account, _)| account.applied + account.dead).sum();
        if settled != self.settled || moment.placed < options.events {
            *self = Self { settled, at: now };
        }
        now.saturating_sub(self.at)
    }
}

async fn look<S: ShopStore>(
    running: &Running<S>,
    placed: &AtomicU64,
    options: &Options,
    seconds: f64,
) -> anyhow::Result<Moment> {
    let placed = placed.load(Ordering::Relaxed);
    let accounts = running.accounts().await?;
    let retried = running.consumers().iter().map(|consumer| consumer.status.retried());
    let settled = accounts.iter().all(|account| account.committed == account.applied + account.dead);
    let relay = running.relay();
    Ok(Moment {
        placed,
        published: relay.map_or(0, |relay| relay.published()),
        paused: relay.is_some_and(|relay| relay.is_paused()),
        done: placed == options.events && settled,
        rows: accounts.into_iter().zip(retried).collect(),
        seconds,
    })
}

fn one_line(moment: &Moment, options: &Options) -> String {
    let consumers = moment.rows.iter().map(|(account, _)| {
        format!(
            "{} {}+{}+{}/{}",
            account.name, account.applied, account.waiting, account.dead, account.committed
        )
    });
    let consumers: Vec<_> = consumers.collect();
    format!(
        "{:.1}s  orders {}/{}  applied+waiting+dead/committed: {}",
        moment.seconds,
        moment.placed,
        options.events,
        consumers.join("  ")
    )
}

/// The terminal, given back as it was found, whatever happens.
struct Screen(ratatui::DefaultTerminal);

impl Screen {
    fn open() -> Self {
        Self(ratatui::init())
    }

    /// Draws, and says whether somebody wants to leave.
    fn draw(&mut self, moment: &Moment, options: &Options) -> anyhow::Result<bool> {
        self.0.draw(|frame| render(frame, moment, options))?;
        while event::poll(Duration::ZERO)? {
            if let Input::Key(key) = event::read()? {
                let interrupt =
                    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if interrupt || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// What the columns of the table are called, and how wide they are: all of it fits a terminal of 80 columns.
const COLUMNS: [(&str, u16); 8] = [
    ("consumer", 9),
    ("committed", 9),
    ("= applied", 9),
    ("+ waiting", 9),
    ("+ dead", 7),
    ("in hand", 7),
    ("retried", 7),
    ("", 11),
];

const STORY: &str = "billing issues invoices (events caused by events), email is flaky and retried, \
                     warehouse gets poisoned orders (dead letters), analytics wants everything.";

fn render(frame: &mut ratatui::Frame<'_>, moment: &Moment, options: &Options) {
    let height = u16::try_from(moment.rows.len()).unwrap_or(u16::MAX).saturating_add(3);
    let fixed = height.saturating_add(2 + 3 + 2);
    // A small terminal keeps the account, and does without the words about it.
    let words = frame.area().height.saturating_sub(fixed).min(5);
    let [title, orders, accounts, legend, rest] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(3),
        Constraint::Length(height),
        Constraint::Length(words),
        Constraint::Min(1),
    ])
    .areas(frame.area());

    let heading = Line::from(vec![
        Span::from(" postrider demo ").bold().reversed(),
        Span::from(format!("  {}", options.backend)),
    ]);
    frame.render_widget(Paragraph::new(heading), title);

    #[expect(clippy::cast_precision_loss, reason = "a bar has a hundred steps")]
    let ratio = if options.events == 0 { 1.0 } else { moment.placed as f64 / options.events as f64 };
    let relay = if moment.paused { "paused: the broker or the store is away" } else { "running" };
    let clock = Line::from(format!(" seed {}, {:.1} s ", options.seed, moment.seconds)).dim();
    let gauge = Gauge::default()
        .block(
            Block::bordered()
                .title(" orders, each in one transaction with its event ")
                .title(clock.right_aligned()),
        )
        .gauge_style(Style::new().fg(Color::Cyan))
        .ratio(ratio.clamp(0.0, 1.0))
        .label(format!(
            "{} of {}   relay {relay}, {} published",
            moment.placed, options.events, moment.published
        ));
    frame.render_widget(gauge, orders);

    let header = COLUMNS.map(|(title, width)| {
        let width = usize::from(width);
        Cell::from(if title == "consumer" { title.to_owned() } else { format!("{title:>width$}") })
    });
    let rows = moment.rows.iter().map(|(account, retried)| account_row(account, *retried));
    let table = Table::new(rows, COLUMNS.map(|(_, width)| Constraint::Length(width)))
        .header(Row::new(header).style(Style::new().bold()))
        .block(Block::bordered().title(" accounts, counted from what is stored "));
    frame.render_widget(table, accounts);

    let text = vec![
        Line::from(STORY),
        Line::from("In hand: being handled right now, in no queue and not yet applied.").dim(),
        Line::from("kill -9 this process and run the demo again: the account still holds.").dim(),
    ];
    frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), legend);
    let keys = if moment.done { "done: every event was found once. q leaves" } else { "q leaves" };
    // How to leave comes first where there is room for one line.
    let page = options.dashboard.as_ref().filter(|_| rest.height > 1);
    let seen = page.map(|at| Line::from(format!("See it in a browser: {at}")));
    let lines: Vec<Line<'_>> = seen.into_iter().chain([Line::from(keys).bold()]).collect();
    frame.render_widget(Paragraph::new(lines), rest);
}

fn account_row(account: &Account, retried: u64) -> Row<'static> {
    let number = |column: usize, count: u64, colour: Color| {
        let style = if count == 0 { Style::new().dim() } else { Style::new().fg(colour) };
        let width = usize::from(COLUMNS[column].1);
        Cell::from(format!("{count:>width$}")).style(style)
    };
    let state = if account.committed > 0 && account.waiting == 0 && account.holds() {
        Cell::from("all settled").style(Style::new().fg(Color::Green))
    } else {
        Cell::from("")
    };
    Row::new(vec![
        Cell::from(account.name.clone()).style(Style::new().bold()),
        number(1, account.committed, Color::Reset),
        number(2, account.applied, Color::Green),
        number(3, account.waiting, Color::Yellow),
        number(4, account.dead, Color::Red),
        number(5, account.unaccounted, Color::Cyan),
        number(6, retried, Color::Magenta),
        state,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn moment() -> Moment {
        let account = |name: &str, committed, applied, dead| Account {
            name: name.to_owned(),
            committed,
            applied,
            waiting: 0,
            dead,
            unaccounted: 0,
            unaccounted_ids: Vec::new(),
        };
        let rows = vec![
            (account("billing", 500, 500, 0), 0),
            (account("email", 500, 500, 0), 151),
            (account("warehouse", 500, 494, 6), 0),
            (account("analytics", 1000, 1000, 0), 0),
        ];
        Moment { placed: 500, published: 1000, paused: false, rows, done: true, seconds: 27.6 }
    }

    fn options() -> Options {
        Options {
            events: 500,
            rate: 100,
            seed: 7,
            exit: false,
            live: true,
            quiet: false,
            backend: "SQLite file .postrider/postrider.db with the embedded broker".to_owned(),
            dashboard: Some("http://127.0.0.1:7070/dashboard".to_owned()),
            at_work: Arc::default(),
        }
    }

    fn shown(width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| render(frame, &moment(), &options())).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn counting_takes_a_fifth_of_the_time() {
        let millis = Duration::from_millis;
        assert_eq!([1, 100, 60_000].map(|took| pause(millis(took))), [50, 400, 10_000].map(millis));
    }

    #[test]
    fn a_shop_that_takes_long_is_not_stuck() {
        let (mut moment, options, at) = (moment(), options(), Duration::from_secs);
        let mut moving = Moving { settled: 0, at: at(0) };
        assert_eq!(moving.still_for(&moment, &options, at(500)), at(0));
        assert_eq!(moving.still_for(&moment, &options, at(530)), at(30));
        moment.rows[0].0.applied += 1;
        assert_eq!(moving.still_for(&moment, &options, at(600)), at(0), "something moved");
        moment.placed -= 1;
        assert_eq!(moving.still_for(&moment, &options, at(900)), at(0), "an order is still to come");
    }

    #[test]
    fn eighty_columns_show_all_of_it() {
        let screen = shown(80, 24);
        assert!(screen.contains("= applied + waiting  + dead in hand retried"), "{screen}");
        let warehouse = screen.lines().find(|line| line.contains("warehouse ")).unwrap();
        let words: Vec<_> = warehouse.trim_matches('"').trim_matches('│').split_whitespace().collect();
        assert_eq!(words, ["warehouse", "500", "494", "0", "6", "0", "0", "all", "settled"], "{screen}");
        for whole in ["seed 7, 27.6 s", "analytics wants everything.", "the account still holds.", "q leaves"]
        {
            assert!(screen.contains(whole), "no {whole:?} in\n{screen}");
        }
    }

    #[test]
    fn a_small_terminal_keeps_the_account() {
        for height in [14, 13] {
            let screen = shown(80, height);
            assert!(screen.contains("analytics      1000"), "{screen}");
            assert!(screen.contains("q leaves"), "{screen}");
        }
    }
}
