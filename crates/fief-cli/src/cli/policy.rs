// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words about a policy: what the kernel can do of it, whether it is right, in force and at work.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueHint};
use fief_control::LetGo;

/// No unit has this name.
const EVERY_UNIT: &str = "*";

/// Show what this kernel can do, found out by trying
///
/// Each feature is tried, not looked up in a list of versions; what is missing is shown with its remedy. Fails if
/// something is missing that Fief cannot do without.
#[derive(Debug, Args)]
pub struct Probe {
    /// One JSON object a line: the machine, then each feature
    #[arg(long)]
    pub json: bool,
}

/// Check policies and say what they mean; nothing is changed
///
/// Errors are shown in their line, with what was expected and the remedy. A policy without errors is explained: its
/// containers, what stands before each listener, and what its rules do. Needs no privilege and no kernel.
#[derive(Debug, Args)]
pub struct Check {
    /// Policies (TOML); `-`: standard input
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub files: Vec<PathBuf>,
    /// One JSON object a line: each policy or each of its errors
    #[arg(long)]
    pub json: bool,
    /// Only errors
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
}

/// Put a policy in force, in place of the one before
///
/// The policy is replaced as a whole: what cannot be put in force changes nothing. Connections keep the class they have.
/// Containers that the new policy no longer names stay while applications hold them, below the nearest container above that
/// stays. A managed unit whose container the policy no longer has goes to the one that its drop-in (`fief unit`) says. If none
/// does, the policy is refused, with the units and the commands that give them one. The policy stays in force after the command
/// has ended, until `fief down` or the next start of the machine. The last lines say what `fief status --brief` says:
/// who serves each listener now, what is enforced, and what does not work.
#[derive(Debug, Args)]
pub struct Apply {
    /// The policy (TOML); `-`: standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Room for so many containers; counts when nothing is in force yet
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(64..=1_048_576))]
    pub containers: Option<u32>,
    /// Print what would change, and change nothing; fails where `apply` would refuse the policy
    #[arg(long)]
    pub dry_run: bool,
    /// Change nothing where a policy is in force already, and say so; for what starts at boot
    #[arg(long, conflicts_with = "dry_run")]
    pub unless_in_force: bool,
    /// Also where the policy in force is of another network namespace: the front door moves to this one
    #[arg(long)]
    pub here: bool,
    /// Also where managed units lose their container: they stay in it, and nobody's account has what they use; with =UNIT only
    /// this one, by its name or its cgroup (may be repeated)
    #[arg(long, value_name = "UNIT", num_args = 0..=1, require_equals = true, default_missing_value = EVERY_UNIT)]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub let_go: Vec<String>,
    /// So many containers for each unprivileged user; counts when nothing is in force yet
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub user_quota: Option<u32>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

impl Apply {
    /// Which units it may let go.
    pub fn let_go(&self) -> LetGo {
        match &self.let_go[..] {
            [] => LetGo::None,
            units if units.iter().any(|unit| unit == EVERY_UNIT) => LetGo::All,
            units => LetGo::Units(units.to_vec()),
        }
    }
}

/// Tell whether what is in force works
///
/// Which policy is in force and for how long, who listens where it says, whether they are managed, where the front door
/// stands, and what does not work, with what to do about it. Exit codes: 0 all works; 1 something does not, or this user cannot tell;
/// 3 nothing is in force.
#[derive(Debug, Args)]
pub struct Status {
    /// The few lines with which `apply` and `run` end their start
    #[arg(long, conflicts_with = "json")]
    pub brief: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Take down everything that is in force
///
/// Servers go on, unmanaged, also the one of a `fief run`. Containers that applications still hold lose what they were used for.
/// Where nothing is in force that is said, and is no failure. Units that start under Fief by `fief unit` do not start again until
/// something is in force: they are named, with what helps. A sysctl that cannot be given back is told and stays noted, and the next `fief
/// down` gives it back.
#[derive(Debug, Args)]
pub struct Down {
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}
