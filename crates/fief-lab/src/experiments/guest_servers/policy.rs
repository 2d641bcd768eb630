// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sites, and the policy that gives each its share of the core.

use std::fmt::Write as _;

/// A site with what it is given, in percent of what the sites and the background have together.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Its container and its listener.
    pub name: &'static str,
    pub port: u16,
    pub share: f64,
    /// Of its share: what its programs have together. The rest is the server's.
    pub of_programs: f64,
    /// The server's own limit, in proportion to the shares.
    pub most_connections: usize,
}

pub const SITES: [Site; 3] = [
    Site { name: "a", port: 8001, share: 45.0, of_programs: 15.0, most_connections: 40 },
    Site { name: "b", port: 8002, share: 27.0, of_programs: 9.0, most_connections: 24 },
    Site { name: "c", port: 8003, share: 18.0, of_programs: 6.0, most_connections: 16 },
];

/// Its container has what the sites leave.
pub const BACKGROUND: &str = "background";

/// What the shares of the sites leave.
pub fn rest() -> f64 {
    100.0 - SITES.iter().map(|site| site.share).sum::<f64>()
}

/// The sites and the background together have so much of the machine. The last tenth is for whatever else runs: the lab's clients, where
/// they are on the same CPU; elsewhere it is so much less than the rest as the nice value of the lab makes it without Fief.
const TOGETHER: f64 = 0.9;

/// Shares are of the whole machine, whatever the number of its CPUs. All that wants the CPU is on one core, so that core is divided in
/// these proportions.
pub fn policy() -> String {
    let percent = |of: f64| format!("{:.4}%", of * TOGETHER);
    let head =
        format!("version = 1\nschedule = \"auto\"\n[container.{BACKGROUND}]\ncpu.share = \"{}\"\n", percent(rest()));
    let mut text = head;
    for Site { name, port, share, of_programs, .. } in SITES {
        let (share, of_programs) = (percent(share), percent(of_programs));
        let _ = writeln!(
            text,
            "[container.{name}]\ncpu.share = \"{share}\"\nprograms = \"{name}/cgi\"\n[container.\"{name}/cgi\"]\n\
             cpu.share = \"{of_programs}\"\n[listener.{name}]\naddress = \"0.0.0.0:{port}\"\n\
             [[listener.{name}.client]]\nfrom = [\"any\"]\ncontainer = \"{name}\""
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_leave_the_background_something_and_programs_are_a_third_of_each_site() {
        assert_eq!(rest(), 10.0);
        assert!(SITES.iter().all(|site| site.of_programs * 3.0 == site.share));
    }

    #[test]
    fn the_servers_own_limits_are_in_proportion_to_the_shares() {
        let each = SITES.map(|site| site.most_connections as f64 / site.share);
        assert!(each.iter().all(|one| (one - each[0]).abs() < 1e-9));
    }

    #[test]
    fn each_site_has_its_share_and_its_programs_theirs_in_the_policy() {
        let text = policy();
        assert!(text.contains(
            "[container.b]\ncpu.share = \"24.3000%\"\nprograms = \"b/cgi\"\n[container.\"b/cgi\"]\ncpu.share = \"8.1000%\"\n"
        ));
        assert!(text.contains("[container.background]\ncpu.share = \"9.0000%\"\n"));
        assert!(text.contains("[listener.c]\naddress = \"0.0.0.0:8003\"\n"));
    }
}
