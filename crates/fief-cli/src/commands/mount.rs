// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief mount`: the containers as folders and files (RCLinux, section 3.6: a folder for each container, with a file to read and one
//! to write). A table of contents: `inode` numbers the files, `folders` names them, `page` is what they say, `order` what is written
//! into `cmd`, `readers` and `caller` who may read and write, `changed` makes changes, `served` answers the kernel's requests.

mod caller;
mod changed;
mod folders;
mod inode;
mod order;
mod page;
mod readers;
mod served;

use std::os::fd::{AsFd, OwnedFd};

use fuser::{Config, Session, SessionACL};

use crate::cli;
use crate::commands::agent;
use crate::failure::{Failure, Result};
use crate::look;
use crate::output::{Output, printable, say};
use fief_control::{Fief, Mounted, mounted_at};
use readers::Readers;
use served::Served;

/// One that waits for a policy to come into force is not to keep the others from reading.
const THREADS: usize = 4;

pub fn run(args: &cli::Mount, output: &mut Output) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Failure::new("only root mounts; run it as root"));
    }
    let readers = Readers::of(agent::group(args.group.as_deref())?);
    let fief = Fief::from_env()?;
    if !fief.installed() {
        return Err(look::nothing());
    }
    if let Some(mounted) = mounted_at(&args.folder)? {
        make_way(&mounted, output)?;
    }
    let stop = stop_by_signal()?;
    let (device, mounted) = fief.mount(&args.folder)?;
    let served = Served::new(fief.clone(), readers);
    // by a mount of our own: the crate's would, at its end, unmount whatever has been below (0.18)
    let session = Session::from_fd(served, device, SessionACL::All, threads()).map_err(|error| {
        let _ = mounted.unmount();
        Failure::new(format!("cannot serve containers at {}: {error}", args.folder.display()))
    })?;
    let folder = printable(&mounted.folder.to_string_lossy());
    let told = format!(
        "containers are mounted at {folder}; see them: cat {folder}/*/usage\nCtrl-C, `fief umount` or `fief down` ends it"
    );
    output.line(told).and_then(|()| output.flush()).inspect_err(|_| {
        // nobody serves it
        let _ = mounted.unmount();
    })?;
    let own = mounted.clone();
    std::thread::spawn(move || {
        if let Err(error) = fief.wait_down(stop.as_fd()) {
            say(error);
        }
        // the session sees it end, and so does whoever waits for an answer
        if let Err(error) = own.unmount() {
            say(error);
        }
    });
    let served = session.run();
    // it may have been ended from another mount namespace, and stand here still
    if mounted_at(&mounted.folder).is_ok_and(|at| at == Some(mounted.clone())) && mounted.is_stale() {
        mounted.unmount()?;
    }
    served.map_err(|error| Failure::new(format!("cannot serve {folder}: {error}")))?;
    output.line(format!("{folder} is no longer mounted"))
}

fn threads() -> Config {
    let mut config = Config::default();
    config.n_threads = Some(THREADS);
    config
}

/// One that a killed process left is replaced; one that is served stays.
fn make_way(mounted: &Mounted, output: &mut Output) -> Result<()> {
    let folder = printable(&mounted.folder.to_string_lossy());
    if !mounted.is_stale() {
        let what = format!("containers are mounted at {folder} already; end that by `fief umount {folder}`");
        return Err(Failure::new(what));
    }
    mounted.unmount()?;
    output.line(format!("replaces the mount at {folder}, which nobody serves any more"))
}

/// Can be read once Ctrl-C or SIGTERM has come.
fn stop_by_signal() -> Result<OwnedFd> {
    let cannot = |error: &dyn std::fmt::Display| Failure::new(format!("cannot wait for Ctrl-C: {error}"));
    let (stop, signalled) = nix::unistd::pipe().map_err(|error| cannot(&error))?;
    ctrlc::set_handler(move || {
        let _ = nix::unistd::write(&signalled, &[1]);
    })
    .map_err(|error| cannot(&error))?;
    Ok(stop)
}
