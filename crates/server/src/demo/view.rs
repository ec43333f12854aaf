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
use ratatui::widgets::{Block, Cell, Gauge, Paragraph, Row, Table};
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
    let mut finished = None;
    loop {
        let moment = match look(running, placed, options, clock.since(start).as_secs_f64()).await {
            Ok(moment) => moment,
            // A server that is away comes back; the shop goes on by itself.
            Err(error) if clock.since(seen) < PATIENCE && !stop.is_cancelled() => {
                tracing::warn!(%error, "cannot count for a moment");
                clock.sleep(Duration::from_millis(500)).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        seen = clock.monotonic();
        if moment.done && finished.is_none() {
            finished = Some(clock.monotonic());
        }
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
        let late = clock.since(start);
        if finished.is_none() && moment.placed == options.events && late > PATIENCE + expected(options) {
            anyhow::bail!(
                "not everything took effect within {PATIENCE:?}; the account below says what is where"
            );
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = clock.sleep(Duration::from_millis(if screen.is_some() { 100 } else { 50 })) => {}
        }
    }
}

fn expected(options: &Options) -> Duration {
    Duration::from_secs(options.events / options.rate.max(1))
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

fn render(frame: &mut ratatui::Frame<'_>, moment: &Moment, options: &Options) {
    let height = u16::try_from(moment.rows.len()).unwrap_or(u16::MAX).saturating_add(3);
    let [title, orders, accounts, legend, rest] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(3),
        Constraint::Length(height),
        Constraint::Length(5),
        Constraint::Min(1),
    ])
    .areas(frame.area());

    let heading = Line::from(vec![
        Span::from(" postrider demo ").bold().reversed(),
        Span::from(format!("  {}  ", options.backend)),
        Span::from(format!("seed {}  {:.1} s", options.seed, moment.seconds)).dim(),
    ]);
    frame.render_widget(Paragraph::new(heading), title);

    #[expect(clippy::cast_precision_loss, reason = "a bar has a hundred steps")]
    let ratio = if options.events == 0 { 1.0 } else { moment.placed as f64 / options.events as f64 };
    let relay = if moment.paused { "paused: the broker or the store is away" } else { "running" };
    let gauge = Gauge::default()
        .block(Block::bordered().title(" orders, each committed with its event in one transaction "))
        .gauge_style(Style::new().fg(Color::Cyan))
        .ratio(ratio.clamp(0.0, 1.0))
        .label(format!(
            "{} of {}   relay {relay}, {} published",
            moment.placed, options.events, moment.published
        ));
    frame.render_widget(gauge, orders);

    let header =
        ["consumer", "committed", "= applied", "+ waiting", "   + dead", "  in hand", "  retried", ""];
    let header = header.map(|title| Cell::from(format!("{title:>9}")));
    let rows = moment.rows.iter().map(|(account, retried)| account_row(account, *retried));
    let widths = [10, 10, 10, 10, 10, 10, 10, 12].map(Constraint::Length);
    let table = Table::new(rows, widths)
        .header(Row::new(header).style(Style::new().bold()))
        .block(Block::bordered().title(" accounts, counted from what is stored "));
    frame.render_widget(table, accounts);

    let text = vec![
        Line::from(
            "billing issues invoices (events caused by events), email is flaky and retried, warehouse gets",
        ),
        Line::from("poisoned orders that become dead letters, analytics wants everything."),
        Line::from("In hand: being handled right now, in no queue and not yet applied.").dim(),
        Line::from("kill -9 this process and run the demo again: the account still holds.").dim(),
    ];
    frame.render_widget(Paragraph::new(text), legend);
    let keys = if moment.done { "done: every event was found once. q leaves" } else { "q leaves" };
    let seen = options.dashboard.as_ref().map(|at| Line::from(format!("See it in a browser: {at}")));
    let lines: Vec<Line<'_>> = seen.into_iter().chain([Line::from(keys).bold()]).collect();
    frame.render_widget(Paragraph::new(lines), rest);
}

fn account_row(account: &Account, retried: u64) -> Row<'static> {
    let number = |count: u64, colour: Color| {
        let style = if count == 0 { Style::new().dim() } else { Style::new().fg(colour) };
        Cell::from(format!("{count:>9}")).style(style)
    };
    let state = if account.committed > 0 && account.waiting == 0 && account.holds() {
        Cell::from("all settled").style(Style::new().fg(Color::Green))
    } else {
        Cell::from("")
    };
    Row::new(vec![
        Cell::from(account.name.clone()).style(Style::new().bold()),
        number(account.committed, Color::Reset),
        number(account.applied, Color::Green),
        number(account.waiting, Color::Yellow),
        number(account.dead, Color::Red),
        number(account.unaccounted, Color::Cyan),
        number(retried, Color::Magenta),
        state,
    ])
}
