// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `fief umount`: the end of a mount of containers, whether somebody serves it or not.

use crate::cli::Umount;
use crate::failure::Result;
use crate::output::{Output, printable};
use fief_control::{Mounted, mounted_at};

pub fn run(args: &Umount, output: &mut Output) -> Result<()> {
    let mounted = mounted_at(&args.folder)?.ok_or_else(|| Mounted::none(&args.folder))?;
    mounted.unmount()?;
    output.line(format!("unmounted {}", printable(&mounted.folder.to_string_lossy())))
}
