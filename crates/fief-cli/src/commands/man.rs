// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief man`: writes the man pages, made of the command line's own description. Hidden: it is for packages.
//!
//! The synopsis is the usage line of the help, because clap_mangen's own knows no `--` before a server's arguments.

use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::cli::{self, Cli, EXIT_CODES};
use crate::failure::{Failure, Result};

pub fn run(args: &cli::Man) -> Result<()> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder)
        .and_then(|()| write_all(folder))
        .map_err(|error| Failure::new(format!("cannot write the man pages into {}: {error}", folder.display())))
}

fn write_all(folder: &Path) -> io::Result<()> {
    let mut fief = Cli::command();
    // Tells the subcommands their names in the usage line.
    fief.build();
    for command in fief.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = format!("fief-{}", command.get_name());
        std::fs::write(folder.join(format!("{name}.1")), page(&name, command)?)?;
    }
    std::fs::write(folder.join("fief.1"), page("fief", &fief)?)
}

fn page(name: &str, command: &Command) -> io::Result<Vec<u8>> {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    let command = command.clone().display_name(name.to_owned());
    let has_subcommands = command.has_subcommands();
    let man = Man::new(command).title(name.to_owned());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    section("SYNOPSIS", &usage, &mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_subcommands {
        man.render_subcommands_section(&mut page)?;
    }
    section("EXIT STATUS", EXIT_CODES.trim_start_matches("Exit codes: "), &mut page)?;
    Ok(page)
}

fn section(title: &str, text: &str, page: &mut Vec<u8>) -> io::Result<()> {
    Roff::new().control("SH", [title]).text([roman(text)]).to_writer(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_synopsis_keeps_the_servers_arguments_apart() {
        let mut fief = Cli::command();
        fief.build();
        let run = fief.find_subcommand("run").expect("a command");
        let page = String::from_utf8(page("fief-run", run).expect("memory does not fail")).expect("text");
        let expected = r"fief run [OPTIONS] <POLICY> \-\- <SERVER> [ARGS]...";
        assert!(page.contains(expected), "{page}");
    }
}
