// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CGI program: so much CPU time by its own clock, then a line.

use std::time::Duration;

use crate::error::{Error, Kind, Result};
use crate::workers::spend;

/// The program's main: milliseconds of CPU.
pub fn cgi_main(arguments: &[String]) -> Result<()> {
    let usage = || Error::new(Kind::Usage, "a program takes its CPU time in ms");
    let [time_ms] = arguments else { return Err(usage()) };
    spend(Duration::from_millis(time_ms.parse().map_err(|_| usage())?));
    print!("Content-Type: text/plain\r\n\r\ndone\n");
    Ok(())
}
