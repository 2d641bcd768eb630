// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief manage`: a unit, process or cgroup that already runs gets a home.

use serde::Serialize;

use crate::cli::Manage;
use crate::failure::Result;
use crate::output::{Output, notes, printable};
use fief_control::{Fief, ManageOptions, Managed, Target};

pub fn run(args: &Manage, output: &mut Output) -> Result<()> {
    let target = Target::parse(&args.target)?;
    let options = ManageOptions { container: args.container.clone(), follow: args.follow };
    let managed = Fief::from_env()?.manage(&target, &options)?;
    match args.json {
        true => output.json(&Record::of(&managed)),
        false => output.text(page(&managed)),
    }
}

fn page(managed: &Managed) -> String {
    let mut page = format!(
        "{} threads in {} are now in the container {}; {} listening sockets have classes\n",
        managed.threads,
        printable(&managed.cgroup.to_string_lossy()),
        printable(&managed.container),
        managed.listeners,
    );
    page.push_str(&notes(&managed.notes));
    page
}

#[derive(Serialize)]
struct Record<'a> {
    container: &'a str,
    cgroup: String,
    threads: usize,
    listeners: usize,
    notes: &'a [String],
}

impl<'a> Record<'a> {
    fn of(managed: &'a Managed) -> Self {
        Self {
            container: &managed.container,
            cgroup: managed.cgroup.to_string_lossy().into_owned(),
            threads: managed.threads,
            listeners: managed.listeners,
            notes: &managed.notes,
        }
    }
}
