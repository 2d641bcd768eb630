// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of the lab: its experiments, their options and their help.
//!
//! Two programs have these words: `fief`, for its help, completions and man pages, and `fief-lab`, which `fief lab` becomes. They
//! are a crate of their own so that `fief` links nothing else of the lab.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

/// The program that makes the experiments; it lies beside `fief`.
pub const PROGRAM: &str = "fief-lab";

/// Make an experiment, without and with Fief
///
/// Makes network namespaces of its own, so that nothing of the machine is touched, and alternates without and with Fief.
/// Prints a table of medians with their spread.
#[derive(Clone, Debug, Args)]
pub struct Lab {
    /// Which experiment
    #[arg(value_name = "NAME")]
    pub experiment: Experiment,
    /// Fewer loads and rounds of the same measurements: ends within some minutes
    #[arg(long)]
    pub quick: bool,
    /// One JSON object a line; the last one holds the figures
    #[arg(long)]
    pub json: bool,
    /// Run it in an emulated machine with one exact CPU and a kernel that takes schedulers (needs QEMU and the source tree)
    #[arg(long)]
    pub vm: bool,
    /// Write the figures, plots and a page into this folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub report: Option<PathBuf>,
}

/// Each with one line for the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Experiment {
    /// what each operation on a container costs
    Primitives,
    /// response time of one paying client beside many others
    PriorityClients,
    /// whether every nanosecond is charged to whom it belongs
    Accounting,
    /// what a server keeps of its throughput under a flood of SYNs
    SynFlood,
    /// what preferred clients and a limited URL keep under overload
    HeaderControl,
    /// three classes of clients before 50 blocking workers
    Classes,
    /// the same limit kept by the server and by the kernel
    UserVsKernel,
    /// what the front door costs a packet, by the number of rules, and a server
    AdmissionCost,
    /// what a head costs whatever its segments are, and whether servers read it the same
    Parse,
    /// who pays for a flood that nobody polices
    Lrp,
    /// what everything together costs nginx, by the number of clients
    Whole,
    /// one better client beside many others at servers of all kinds, unmodified
    Queue,
    /// whether containers get their shares and weights of the CPU
    CpuShares,
    /// whether a limited container gets its limit, whatever else runs
    CpuLimits,
    /// what a flood for a limited container takes, in the kernel and in its threads
    KernelWork,
    /// whether a thread that serves several containers has the CPU of all of them
    Combined,
    /// what a player and its display server show beside others, as one container and as two
    Media,
    /// what a context switch costs under Fief's scheduler, beside the kernel's own and a minimal one
    SwitchCost,
    /// what static requests keep beside CGI programs, free and limited
    CgiSandbox,
    /// whether sites on one core have their shares beside each other and a background
    GuestServers,
    /// whether a thread that rebinds up to a million times a second is charged right
    Rebind,
    /// what the agent and a record cost
    Metrics,
    /// what clients lose while policies change and a server is started anew
    Service,
    /// queue for newcomers, with a live picture
    Demo,
}

impl Experiment {
    /// Its name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value().expect("no experiment is skipped");
        value.get_name().to_owned()
    }
}
