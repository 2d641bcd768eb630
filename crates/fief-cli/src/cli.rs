// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of `fief`: its words, their arguments and their help. The man pages and completions are made of it.
//!
//! Nouns and reads (`probe`, `check`, `status`, `ls`, `show`, `explain`, `usage`, `top`, `replay`, `bill`) never change anything; verbs do.

use std::time::Duration;

use clap::{Parser, Subcommand};

mod agent;
mod client;
mod container;
mod made;
mod mount;
mod policy;
mod server;

pub use agent::{Agent, Bill, BillFormat, History, Record, Replay};
pub use client::{Ban, Explain, Pardon};
pub use container::{Ls, Show, Top, Usage};
pub use made::{Completions, Interface, Man};
pub use mount::{Mount, Umount};
pub use policy::{Apply, Check, Down, Probe, Status};
pub use server::{Bind, Exec, Manage, Run, Unit};

pub const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed; 2 wrong usage or an error in a policy. \
`fief run` and `fief exec` end with the code of the server (128 plus the signal that ended it); 125: fief itself failed; \
126: the server's program cannot be run; 127: it was not found.";

/// Resource containers for stock Linux: who uses the machine, and who goes first
///
/// A container is a tenant, a class of clients or a single request. Fief charges CPU time, packets and faults to it,
/// wherever in the kernel or in a server the work is done, and serves clients by their class. It needs no patched kernel,
/// no module and no daemon.
#[derive(Debug, Parser)]
#[command(name = "fief", version, max_term_width = 100, after_long_help = EXIT_CODES)]
#[command(disable_help_subcommand = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Probe(Probe),
    Check(Check),
    Apply(Apply),
    Status(Status),
    Down(Down),
    Run(Run),
    Exec(Exec),
    Unit(Unit),
    Manage(Manage),
    Bind(Bind),
    Mount(Mount),
    Umount(Umount),
    Ls(Ls),
    Show(Show),
    Explain(Explain),
    Ban(Ban),
    Pardon(Pardon),
    Usage(Usage),
    Top(Top),
    Agent(Agent),
    Record(Record),
    Replay(Replay),
    Bill(Bill),
    Lab(fief_lab_args::Lab),
    /// Print the JSON schema of policies, for editors
    Schema,
    Completions(Completions),
    #[command(hide = true)]
    Man(Man),
    #[command(hide = true)]
    Interface(Interface),
}

/// From a hundredth of a second to a day.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds, as in 0.5".to_owned())?;
    if !(0.01..=86_400.0).contains(&seconds) {
        return Err("expected 0.01 to 86400 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_has_no_contradiction() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_servers_own_options_stay_the_servers() {
        let cli = Cli::parse_from(["fief", "run", "p.toml", "--", "nginx", "-g", "daemon off;", "--help"]);
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert_eq!(run.policy, PathBuf::from("p.toml"));
        assert_eq!(run.server, ["nginx", "-g", "daemon off;", "--help"]);
    }

    #[test]
    fn all_units_are_let_go_or_those_that_are_named() {
        use fief_control::LetGo;
        let read = |words: &[&str]| {
            let cli = Cli::try_parse_from([&["fief", "apply"], words].concat()).ok()?;
            let Command::Apply(apply) = cli.command else { panic!("not apply") };
            assert_eq!(apply.file, PathBuf::from("p.toml"));
            Some(apply.let_go())
        };
        assert_eq!(read(&["p.toml"]), Some(LetGo::None));
        assert_eq!(read(&["--let-go", "p.toml"]), Some(LetGo::All), "the file is no unit");
        assert_eq!(read(&["p.toml", "--let-go", "--let-go=web"]), Some(LetGo::All));
        let both = LetGo::Units(vec!["web".into(), "/sys/fs/cgroup/api".into()]);
        assert_eq!(read(&["--let-go=web", "--let-go=/sys/fs/cgroup/api", "p.toml"]), Some(both));
        assert_eq!(read(&["--let-go=", "p.toml"]), None, "a script's variable that is empty");
    }

    #[test]
    fn an_interval_of_no_length_is_refused() {
        for wrong in ["0", "-1", "nan", "inf", "1e9", "x"] {
            assert!(Cli::try_parse_from(["fief", "top", "--interval", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_ban_has_a_prefix_and_a_time_with_its_unit() {
        let ban = |words: &[&str]| {
            let cli = Cli::try_parse_from([&["fief", "ban"], words].concat()).map_err(|error| error.to_string())?;
            let Command::Ban(ban) = cli.command else { panic!("not ban") };
            Ok::<_, String>((ban.prefix.map(|prefix| prefix.to_string()), ban.time.as_secs()))
        };
        assert_eq!(ban(&["10.1.2.3"]), Ok((Some("10.1.2.3/32".into()), 3600)));
        assert_eq!(ban(&["fd77::/48", "--for", "7d"]), Ok((Some("fd77::/48".into()), 604_800)));
        assert_eq!(ban(&["--list"]), Ok((None, 3600)));
        for (words, remedy) in [
            (&["10.1.2.3/24"][..], "write \"10.1.2.0/24\""),
            (&["any"], "is everybody"),
            (&["10.0.0.1-10.0.0.2"], "name one at a time"),
            (&["10.1.2.3", "--for", "10"], "as in 90s, 10m, 12h or 7d"),
            (&["10.1.2.3", "--for", "0s"], "1s to 365d"),
            (&["10.1.2.3", "--for", "366d"], "1s to 365d"),
            (&["10.1.2.3", "--list"], "cannot be used with"),
            (&[], "required"),
        ] {
            let error = ban(words).expect_err("refused");
            assert!(error.contains(remedy), "{words:?}: {error}");
        }
    }

    #[test]
    fn every_argument_says_what_it_is() {
        for command in Cli::command().get_subcommands().filter(|c| !c.is_hide_set()) {
            for argument in command.get_arguments().filter(|a| a.get_id() != "shell") {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
        }
    }
}
