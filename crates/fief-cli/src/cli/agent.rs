// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words of what goes on after the moment: the agent, the record of usage, and what is made of it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ZonedDateTime};

use super::seconds;

/// A record of a day of a thousand containers takes less than a tenth, and a day may take an eighth.
const RECORD_MIB: u64 = 4096;

/// Serve metrics, and reading without root
///
/// Answers at a UNIX socket, /run/fief/fief.agent, to root and the members of one group: metrics for Prometheus (GET /metrics), and
/// what `fief status`, `usage`, `ls`, `show`, `top` and `explain` read when a member of the group calls them. It changes nothing,
/// and nothing that is in force needs it. Runs until SIGTERM or Ctrl-C, whatever policy is in force.
#[derive(Debug, Args)]
pub struct Agent {
    /// Members of this group may read; without it those of the group fief, if there is one
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// Metrics also by HTTP, at a loopback address: for everybody on this machine
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Metrics also as fief.prom in this folder, for node_exporter
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub textfile: Option<PathBuf>,
    /// Seconds between two writes of that file
    #[arg(long, short, value_name = "SECS", default_value = "15", value_parser = seconds)]
    pub interval: Duration,
    /// Record usage into this folder, as `fief record` does
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub record: Option<PathBuf>,
    /// Seconds between two readings of the record
    #[arg(long, value_name = "SECS", default_value = "1", value_parser = seconds, requires = "record")]
    pub record_interval: Duration,
    /// The most MiB that the record takes: the oldest days make room. One day takes an eighth of it at most
    #[arg(long, value_name = "MIB", default_value_t = RECORD_MIB, requires = "record")]
    pub record_keep: u64,
    /// Write what happens to the system's journal, with fields for programs: policies, problems, who is shut out, levels of overload. A
    /// service of systemd does so without being told
    #[arg(long)]
    pub journal: bool,
    /// Containers with series of their own, and verdicts by rule; the rest is summed
    #[arg(long, value_name = "N", default_value_t = fief_agent::MOST_CONTAINERS)]
    pub series: usize,
    /// Series also for containers that applications made and named, after those of the policy, of units and of users: who may make
    /// containers then fills them, and the store of whoever scrapes
    #[arg(long)]
    pub applications: bool,
}

/// Record what containers use, to read it later
///
/// A folder with a file for each day (of UTC), in which only what has changed is written, compressed. Whatever ends the command, and
/// wherever a file is cut, what was written before can be read. Runs until SIGTERM or Ctrl-C, whatever policy is in force; `fief
/// agent --record` does the same. Read it by `fief usage --replay DIR`, `fief ls --replay`, `fief top --replay`, `fief replay` and
/// `fief bill`.
#[derive(Debug, Args)]
pub struct Record {
    /// The folder; made if it is not there
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
    /// Seconds between two readings
    #[arg(long, short, value_name = "SECS", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
    /// The most MiB that it takes: the oldest days make room. One day takes an eighth of it at most
    #[arg(long, value_name = "MIB", default_value_t = RECORD_MIB)]
    pub keep: u64,
    /// End after so many readings
    #[arg(long, short = 'n', value_name = "N")]
    pub count: Option<std::num::NonZeroU32>,
}

/// Tell what a record holds
///
/// Its days: from when to when, how many readings, how large, and what of a file cannot be read. Needs no privilege but to read the
/// folder.
#[derive(Debug, Args)]
pub struct Replay {
    /// The folder of the record
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
    /// One JSON object a line, one for each day
    #[arg(long)]
    pub json: bool,
}

/// Tell what each container used in each interval of a record
///
/// Whole intervals, counted from the begin. The lines of an interval add up to what the machine had, and those of all intervals to
/// what was used from the begin to the end. A container that ended is in the interval in which it did. Needs no privilege but to
/// read the folder.
#[derive(Debug, Args)]
pub struct Bill {
    /// The folder of the record
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: PathBuf,
    /// From when, as 2026-11-25T18:00:00Z, or without a zone in that of this machine; without it, from the first reading
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub from: Option<u64>,
    /// Until when; without it, the last reading
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub to: Option<u64>,
    /// Seconds of an interval
    #[arg(long, short, value_name = "SECS", default_value = "3600", value_parser = seconds)]
    pub interval: Duration,
    /// Of the lines
    #[arg(long, value_name = "FORMAT", default_value = "csv")]
    pub format: BillFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BillFormat {
    /// comma-separated values, with a line of names first
    Csv,
    /// one JSON object a line
    Json,
}

/// Of commands that read history as they read the present.
#[derive(Debug, Args)]
pub struct History {
    /// Read this record instead of what is in force; needs no privilege but to read the folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub replay: Option<PathBuf>,
    /// What was known then, as 2026-11-25T18:00:00Z, or without a zone in that of this machine; without it, the last reading
    #[arg(long, value_name = "TIME", requires = "replay", value_parser = time)]
    pub at: Option<u64>,
}

/// Milliseconds since 1970.
fn time(text: &str) -> Result<u64, String> {
    let with_zone = text.parse::<Timestamp>().or_else(|_| text.parse::<ZonedDateTime>().map(|zoned| zoned.timestamp()));
    let local = |_| {
        text.parse::<DateTime>()
            .and_then(|time| time.to_zoned_datetime(TimeZone::system()))
            .map(|zoned| zoned.timestamp())
    };
    let time = with_zone.or_else(local);
    time.ok().and_then(|time| u64::try_from(time.as_millisecond()).ok()).ok_or_else(|| {
        "expected a time, as 2026-11-25T18:00:00Z, or 2026-11-25T18:00:00 in the zone of this machine".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_zone_or_that_of_the_machine() {
        assert_eq!(time("2026-11-25T18:00:00Z"), Ok(1_795_629_600_000));
        assert_eq!(time("2026-11-25T19:00:00.5+01:00"), Ok(1_795_629_600_500));
        let local = time("2026-11-25 18:00:00").expect("a time");
        assert!(local.abs_diff(1_795_629_600_000) <= 14 * 3_600_000, "{local}");
        for wrong in ["", "now", "18:00", "1795629600", "1960-01-01T00:00:00Z"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
