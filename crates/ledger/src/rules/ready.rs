//! Rules to start from: the three examples of the FIS design, with the chart of accounts they post to.

/// The rules.
pub const RULES: &str = include_str!("ready/rules.toml");

/// The chart of accounts that they need.
pub const CHART: &str = include_str!("ready/chart.toml");
