// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief bind`: the threads of a process that already runs are bound to a container.

use serde::Serialize;

use crate::cli::Bind;
use crate::failure::Result;
use crate::output::{Output, printable};
use fief_control::Fief;

pub fn run(args: &Bind, output: &mut Output) -> Result<()> {
    let bound = Fief::from_env()?.bind(args.pid, &args.container)?;
    match args.json {
        true => output.json(&Record { pid: args.pid, container: &args.container, threads: bound.threads }),
        false => output.line(format!(
            "bound {} threads of process {} to {}",
            bound.threads,
            args.pid,
            printable(&args.container)
        )),
    }
}

#[derive(Serialize)]
struct Record<'a> {
    pid: i32,
    container: &'a str,
    threads: usize,
}
