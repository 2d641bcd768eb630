// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words about containers: which there are, and what each has used.

use std::num::NonZeroU32;
use std::time::Duration;

use clap::Args;

use super::{History, seconds};

/// List the containers
#[derive(Debug, Args)]
pub struct Ls {
    #[command(flatten)]
    pub history: History,
    /// One JSON object a line, one for each container
    #[arg(long)]
    pub json: bool,
}

/// Show all about one container
///
/// Its attributes, holders, children and usage, and its requests in queues. `fief show system` tells by name what the time
/// went to that belongs to nobody.
#[derive(Debug, Args)]
pub struct Show {
    /// Path of the container, as `fief ls` shows it
    pub container: String,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Print what containers have used
///
/// The numbers count from the making of a container. With --interval, the table shows what was used in each interval; the
/// JSON objects go on counting from the making, with the time of each reading.
#[derive(Debug, Args)]
pub struct Usage {
    /// Paths of containers, as `fief ls` shows them; none: all
    #[arg(value_name = "CONTAINER")]
    pub containers: Vec<String>,
    /// One JSON object a line, one for each container and reading; raw integers, the unit in the name
    #[arg(long)]
    pub json: bool,
    /// Together with all containers below
    #[arg(long, short)]
    pub recursive: bool,
    /// Read again every so many seconds
    #[arg(long, short, value_name = "SECS", value_parser = seconds)]
    pub interval: Option<Duration>,
    /// End after so many readings
    #[arg(long, short = 'n', value_name = "N", requires = "interval")]
    pub count: Option<NonZeroU32>,
    #[command(flatten)]
    pub history: History,
}

/// Watch containers, live
///
/// A tree of the containers with their CPU time in user mode, in the kernel and in receiving packets, as percent of the
/// whole machine, and their packets, connection requests and threads. While a listener has a queue, also who waits there,
/// for how long, and who is refused. Each line counts what is below it too. Keys: see the last line of the screen, and `?`.
/// Plain lines where standard output is not a terminal.
#[derive(Debug, Args)]
pub struct Top {
    /// Seconds between two looks
    #[arg(long, short, value_name = "SECS", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
    /// End after so many looks
    #[arg(long, short = 'n', value_name = "N")]
    pub count: Option<NonZeroU32>,
    /// Plain lines, also on a terminal
    #[arg(long)]
    pub plain: bool,
    #[command(flatten)]
    pub history: History,
}
