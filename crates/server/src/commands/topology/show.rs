//! A plan as people read it: a sign and a subject for each step, what changes below it, and the counts at the end.

use std::fmt::Write as _;
use std::io::IsTerminal as _;

use postrider::topology::plan::{Plan, Sign, Step};

use super::super::Context;

/// The plan as text, in colours where a terminal shows them.
pub(super) fn plan(plan: &Plan, context: &Context) -> String {
    let paint = Paint(std::io::stdout().is_terminal() && !context.environment.no_color());
    let mut text = String::new();
    write_steps(&mut text, &plan.steps, paint);
    for blocked in &plan.blocked {
        let _ = writeln!(text, "{}", paint.red(&format!("  !   {blocked}")));
    }
    for note in &plan.notes {
        let _ = writeln!(text, "note: {note}");
    }
    if !plan.extra.is_empty() {
        let _ = writeln!(text, "on the broker beyond this, left alone (--prune removes it):");
        write_steps(&mut text, &plan.extra, paint);
    }
    text + &counts(plan)
}

/// What is to be done, in numbers.
pub(crate) fn counts(plan: &Plan) -> String {
    if plan.is_empty() {
        let mut text = format!("nothing to do in virtual host {}", plan.vhost);
        if !plan.unset.is_empty() {
            let _ = write!(text, " for this user; policies that are missing: {}", plan.unset.len());
        }
        return text;
    }
    let [add, change, replace, remove] =
        [Sign::Add, Sign::Change, Sign::Replace, Sign::Remove].map(|sign| plan.count(sign));
    let mut text = format!(
        "in virtual host {}: {add} to add, {change} to change, {replace} to replace, {remove} to remove",
        plan.vhost
    );
    if !plan.blocked.is_empty() {
        let _ = write!(text, "; {} in the way", plan.blocked.len());
    }
    text
}

fn write_steps(text: &mut String, steps: &[Step], paint: Paint) {
    for step in steps {
        let line = format!("{:>3} {}", step.sign().as_str(), step.subject());
        let _ = writeln!(text, "{}", paint.by(step.sign(), &line));
        for detail in step.details() {
            let _ = writeln!(text, "      {detail}");
        }
    }
}

/// Colours, or none.
#[derive(Clone, Copy)]
struct Paint(bool);

impl Paint {
    fn by(self, sign: Sign, text: &str) -> String {
        match sign {
            Sign::Add => self.with("32", text),
            Sign::Change => self.with("33", text),
            Sign::Replace => self.with("35", text),
            Sign::Remove => self.red(text),
        }
    }

    fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.0 { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}
