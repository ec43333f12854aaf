//! `postrider topology presets`: what there is to choose from.

use std::fmt::Write as _;

use clap::Args;
use postrider::topology::{PRESETS, STRICT};
use serde::Serialize;

use super::super::Context;
use crate::exit::Exit;

/// It takes nothing of its own.
#[derive(Debug, Args)]
pub(super) struct PresetsArgs {}

#[derive(Serialize)]
struct PresetRow {
    name: &'static str,
    summary: &'static str,
    parameters: Vec<ParameterRow>,
}

#[derive(Serialize)]
struct ParameterRow {
    name: &'static str,
    default: &'static str,
    required: bool,
    repeatable: bool,
    what: &'static str,
}

pub(super) fn run(_: &PresetsArgs, context: &Context) -> anyhow::Result<Exit> {
    let rows: Vec<_> = PRESETS
        .iter()
        .map(|preset| PresetRow {
            name: preset.name,
            summary: preset.summary,
            parameters: preset
                .parameters
                .iter()
                .chain(std::iter::once(&STRICT))
                .map(|parameter| ParameterRow {
                    name: parameter.name,
                    default: parameter.default,
                    required: parameter.default.is_empty(),
                    repeatable: parameter.repeatable,
                    what: parameter.what,
                })
                .collect(),
        })
        .collect();
    if context.output.is_for_people() {
        let text: Vec<_> = rows.iter().map(for_people).collect();
        context.output.one(&rows, text.join("\n").trim_end())?;
    } else {
        context.output.rows(&[], &rows, |_| Vec::new())?;
    }
    Ok(Exit::Ok)
}

fn for_people(preset: &PresetRow) -> String {
    let mut text = format!("{}\n  {}\n", preset.name, preset.summary);
    for parameter in &preset.parameters {
        let often = if parameter.repeatable { ", repeatable" } else { "" };
        let default = if parameter.required { "required".to_owned() } else { parameter.default.to_owned() };
        let _ = writeln!(text, "  --set {}=…  {} [{default}{often}]", parameter.name, parameter.what);
    }
    text
}
