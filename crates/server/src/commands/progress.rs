//! `postrider progress`: how far jobs have come.

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use postrider::envelope::TenantId;
use postrider::progress::{Job, JobFilter, JobId, Status, view};
use postrider::store::Jobs;

use super::Context;
use crate::exit::{Exit, usage};
use crate::output::Format;
use crate::wiring::{self, OnStore, WholeStore, Wired};

/// How often a watched job is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long putting a lost key back into Redis may take.
const MENDS: Duration = Duration::from_secs(2);
/// How often it is told of where no bar can be drawn.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// What to see of which jobs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    postrider progress ls --status processing\n  \
    postrider progress get project-7 --json")]
pub(crate) struct ProgressArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List jobs, the newest first
    Ls {
        /// Only those in this status: initializing, crawling, processing_wait, processing, done
        #[arg(long, value_name = "STATUS")]
        status: Option<String>,
        /// Only those of this tenant
        #[arg(long, value_name = "TENANT")]
        tenant: Option<TenantId>,
        /// No more than this many
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,
    },
    /// Show one job as it stands
    Get {
        /// The job, as `postrider progress ls` shows it
        job: JobId,
    },
    /// Follow a job until it is done: a bar on a terminal, else a line every 10 seconds
    #[command(after_help = "Examples:\n  \
        postrider progress watch project-7\n  \
        postrider progress watch project-7 -o jsonl    every change on a line of its own\n\n\
        Ctrl-C ends the watching, not the job.")]
    Watch {
        /// The job
        job: JobId,
    },
}

/// The command, on a store.
pub(crate) struct Follow<'a> {
    pub(crate) args: ProgressArgs,
    pub(crate) context: &'a Context,
}

impl OnStore for Follow<'_> {
    async fn run<S: WholeStore>(self, wired: Wired<S>) -> anyhow::Result<Exit> {
        wired.store.check().await?;
        let context = self.context;
        match self.args.what {
            What::Ls { status, tenant, limit } => {
                let status = status.map(|name| status_of(&name)).transpose()?;
                list(&wired.store, &JobFilter { status, tenant, after: None, limit }, context).await
            }
            What::Get { job } => {
                let job = find(&wired.store, &job).await?;
                context.output.one(&job, &for_people(&job))?;
                if let Some(view) = wiring::job_view(&context.config)? {
                    // The answer is given; a Redis that is away is not waited for.
                    tokio::select! {
                        () = view::mend(&view, &job) => {}
                        () = context.clock.sleep(MENDS) => {}
                    }
                }
                Ok(Exit::Ok)
            }
            What::Watch { job } => watch(&wired.store, &job, context).await,
        }
    }
}

async fn list<S: Jobs>(store: &S, filter: &JobFilter, context: &Context) -> anyhow::Result<Exit> {
    let jobs = store.jobs(filter).await?;
    let header = ["JOB", "STATUS", "DONE", "TOTAL", "ERRORS", "TENANT", "UPDATED"];
    context.output.rows(&header, &jobs, |job| {
        vec![
            job.id.to_string(),
            job.status.to_string(),
            job.done.to_string(),
            job.total.to_string(),
            job.errors.to_string(),
            job.tenant.as_ref().map(ToString::to_string).unwrap_or_default(),
            job.updated_at.to_string(),
        ]
    })?;
    if jobs.len() == usize::try_from(filter.limit).unwrap_or(usize::MAX) {
        context.output.note("there may be more; raise --limit");
    }
    Ok(Exit::Ok)
}

/// Follows a job to its end. People see a bar or a line now and then, programs see every change (jsonl) or the end (json).
async fn watch<S: Jobs>(store: &S, id: &JobId, context: &Context) -> anyhow::Result<Exit> {
    let mut job = find(store, id).await?;
    let mut shown = Shown::new(context);
    loop {
        shown.update(&job)?;
        if job.status == Status::Done {
            break;
        }
        context.clock.sleep(LOOK_EVERY).await;
        let before = job.version;
        job = find(store, id).await?;
        shown.changed |= job.version != before;
    }
    shown.end();
    if context.output.format != Format::Jsonl {
        context.output.one(&job, &for_people(&job))?;
    }
    Ok(Exit::Ok)
}

/// What a watcher has seen.
struct Shown<'a> {
    context: &'a Context,
    bar: Option<ProgressBar>,
    /// Whether the job changed since it was told of.
    changed: bool,
    told_at: Option<Duration>,
}

impl<'a> Shown<'a> {
    fn new(context: &'a Context) -> Self {
        let drawn = std::io::stderr().is_terminal() && !context.output.quiet;
        let bar = drawn.then(|| ProgressBar::new(0).with_style(style()));
        Self { context, bar, changed: true, told_at: None }
    }

    fn update(&mut self, job: &Job) -> anyhow::Result<()> {
        let output = self.context.output;
        if output.format == Format::Jsonl && self.changed {
            output.one(job, "")?;
        }
        if let Some(bar) = &self.bar {
            // Of nothing found so far, nothing is not all.
            match job.total {
                0 if job.status != Status::Done => bar.unset_length(),
                total => bar.set_length(total),
            }
            bar.set_position(job.done);
            bar.set_message(format!("{} {}{}", job.id, job.status, errors(job)));
        } else {
            let now = self.context.clock.monotonic();
            let due = self.told_at.is_none_or(|at| now.saturating_sub(at) >= TELL_EVERY);
            if due {
                self.told_at = Some(now);
                output.note(&for_people(job));
            }
        }
        self.changed = false;
        Ok(())
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn style() -> ProgressStyle {
    let template = "{msg} [{wide_bar:.green}] {pos}/{len} {eta}";
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

async fn find<S: Jobs>(store: &S, id: &JobId) -> anyhow::Result<Job> {
    let job = store.job(id).await?;
    job.with_context(|| format!("there is no job {id}; `postrider progress ls` lists them"))
}

/// `project-7 PROCESSING 40 of 100 (40 %), 2 errors`. While items are still being found, there is no telling of how many.
fn for_people(job: &Job) -> String {
    let Job { id, status, done, total, .. } = job;
    let part = match status {
        Status::Initializing | Status::Crawling => "so far".to_owned(),
        _ => format!("({} %)", (done.min(total) * 100).checked_div(*total).unwrap_or(100)),
    };
    format!("{id} {status} {done} of {total} {part}{}", errors(job))
}

fn errors(job: &Job) -> String {
    match job.errors {
        0 => String::new(),
        1 => ", 1 error".to_owned(),
        errors => format!(", {errors} errors"),
    }
}

fn status_of(name: &str) -> anyhow::Result<Status> {
    Status::from_name(name).ok_or_else(|| {
        let known = Status::ALL.map(|status| status.as_str().to_lowercase()).join(", ");
        usage(format!("--status {name}: there is no such status; write one of {known}"))
    })
}

#[cfg(test)]
mod tests {
    use postrider::progress::NewJob;

    use super::*;

    #[test]
    fn a_job_is_told_in_a_line() {
        let new = NewJob::new("project-7").unwrap();
        let at = jiff::Timestamp::UNIX_EPOCH;
        let job = Job {
            id: new.id,
            tenant: None,
            status: Status::Processing,
            total: 3,
            done: 2,
            errors: 1,
            announces: new.announces,
            version: 5,
            created_at: at,
            updated_at: at,
            finished_at: None,
        };
        assert_eq!(for_people(&job), "project-7 PROCESSING 2 of 3 (66 %), 1 error");
        let early = Job { status: Status::Crawling, total: 0, done: 0, errors: 0, ..job.clone() };
        assert_eq!(for_people(&early), "project-7 CRAWLING 0 of 0 so far");
        let empty = Job { status: Status::Done, total: 0, done: 0, errors: 0, ..job };
        assert_eq!(for_people(&empty), "project-7 DONE 0 of 0 (100 %)");
    }

    #[test]
    fn a_status_may_be_written_small() {
        assert_eq!(status_of("processing_wait").unwrap(), Status::ProcessingWait);
        assert!(status_of("ready").unwrap_err().to_string().contains("crawling"));
    }
}
