// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Charged: whether somebody needs to know who has the CPUs. The programs that charge time, which every switch, softirq and interrupt of
//! the machine passes, are attached as long (`fief_bpf::charging`).
//!
//! Who does:
//!
//!   a managed cgroup                                its threads have a home, and so have those that they start or that are moved there
//!   a thread that has a container                   bound by hand or by a user's files, or of a cgroup that was managed
//!   Fief's scheduler                                it goes by what is charged
//!   a watch (`fief explain --charge`)               also of threads that nobody manages
//!   a policy that goes by CPU time by itself        [`goes_by_time`]
//!
//! They are attached before the need arises, by who has it arise, and detached by whoever ends it: the next policy, or the command that
//! forgets the last cgroup. What needs no lock (a user's bind, a watch) is there first and then looks whether time is charged; who
//! detaches them says so first, and then asks again. So one of the two sees the other, also where the latter is killed.
//! Limits: a cgroup or thread that ends by itself tells no command, so that the next one detaches them.

use std::time::{Duration, Instant};

use fief_bpf::map::MapCore;
use fief_bpf::table::Table;
use fief_bpf::{Result, charging, sweep, watch};
use fief_policy::{Level, Listener, Policy, RequestRate};

use crate::Fief;
use crate::charge::now_ns;

/// A thread counts until its last switch, which comes a moment after its end was told.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// Whether a policy needs it, whatever is managed.
pub(crate) fn goes_by_time(policy: &Policy) -> bool {
    let thresholds = [policy.overload.busy, policy.overload.overloaded];
    let levels_do = thresholds.iter().any(|level| level.cpu_percent > 0);
    let does = |listener: &Listener| {
        // lanes have threads; a queue shares by what its classes use; and who is unknown is answered while the CPU is idle
        listener.lrp.is_some()
            || listener.queue.is_some()
            || listener.unproven.is_some()
            || listener.requests.iter().any(|rule| matches!(rule.rate, Some(RequestRate::Cpu { .. })))
            || levels_do && asks_for_level(listener)
    };
    policy.label_files || policy.wants_enforcer() || policy.listeners.iter().any(does)
}

/// Whether some control there is in force from a level of overload on.
fn asks_for_level(listener: &Listener) -> bool {
    let rates = listener.clients.iter().filter_map(|client| client.syn).chain(listener.unproven).chain(listener.proven);
    let levels = rates
        .map(|rate| rate.when)
        .chain(listener.isolate.iter().map(|isolate| isolate.when))
        .chain(listener.lrp.iter().map(|lrp| lrp.when))
        .chain(listener.requests.iter().map(|rule| rule.when));
    levels.chain([listener.admit_from]).any(|level| level != Level::Always)
}

impl Fief {
    /// Attaches the programs that charge if somebody needs them, and detaches them if nobody does. `policy`: the one in force, where it
    /// is at hand. The state is locked.
    pub(crate) fn settle_charging(&self, policy: Option<&Policy>) -> Result<()> {
        if !charging::can_pause(self.pins()) {
            return Ok(());
        }
        if self.needs_charging(policy)? {
            return charging::attach(self.pins());
        }
        if !charging::is_begun(self.pins()) {
            return Ok(());
        }
        charging::end(self.pins(), || self.needs_charging(policy))
    }

    /// For who has not locked the state, and needs it for what is there already. Whether it begins now.
    pub(crate) fn ensure_charged(&self) -> Result<bool> {
        if charging::is_on(self.pins())? {
            return Ok(false);
        }
        let _lock = self.lock()?;
        charging::attach(self.pins()).map(|()| true)
    }

    /// For who has not locked the state, and needed it alone.
    pub(crate) fn need_ends(&self) -> Result<()> {
        if !self.installed() {
            return Ok(());
        }
        let _lock = self.lock()?;
        if self.installed() { self.settle_charging(None) } else { Ok(()) }
    }

    fn needs_charging(&self, policy: Option<&Policy>) -> Result<bool> {
        let units = self.map("units")?;
        if units.keys().next().is_some()
            || self.pins().schedule().exists()
            || watch::lasts_until(self.pins())? > now_ns()?
        {
            return Ok(true);
        }
        let by_policy = match policy {
            Some(policy) => goes_by_time(policy),
            // of what cannot be read nobody knows
            None => self.policy_in_words()?.is_none_or(|policy| goes_by_time(&policy)),
        };
        Ok(by_policy || self.have_threads()?)
    }

    fn policy_in_words(&self) -> Result<Option<Policy>> {
        Ok(self.policy_text()?.and_then(|text| fief_policy::parse(&text, "policy").ok()))
    }

    /// Whether containers have threads, other than such as are about to end.
    fn have_threads(&self) -> Result<bool> {
        let since = Instant::now();
        loop {
            if !Table::open(self.pins())?.rows().any(|row| row.record.members != 0) {
                return Ok(false);
            }
            if since.elapsed() >= ENDS_WITHIN || sweep::has_threads(self.pins())? {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goes(front: &str, listener: &str) -> bool {
        let text = format!(
            "version = 1\n{front}\n[container.all]\n[listener.web]\naddress = \"0.0.0.0:80\"\nadmit = true\n{listener}\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"all\"\n"
        );
        goes_by_time(&fief_policy::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{error}")))
    }

    const ISOLATES: &str = "isolate = { above = 1000, for = \"10s\" }\nproven = { rate = 1000 }\n";
    const RULES: &str = "[[listener.web.request]]\npath = \"/a/*\"\nrate = { per-second = 5, burst = 5 }\n\
                         [[listener.web.request]]\npath = \"/b\"\nrefuse = \"503\"\npenalty = \"1s\"\n";

    #[test]
    fn what_admits_and_refuses_by_counts_goes_by_no_time() {
        assert!(!goes("", ""));
        assert!(!goes("", &format!("{ISOLATES}{RULES}")));
        assert!(!goes("[overload]\nbusy = { cpu = \"50%\" }\n", RULES), "no control asks for the level");
    }

    #[test]
    fn what_goes_by_idle_or_used_time_is_known() {
        for listener in [
            "queue = true\n",
            "lrp.when = \"always\"\n",
            "unproven = { rate = 5000 }\n",
            "[[listener.web.request]]\npath = \"/a\"\ncontainer = \"all\"\nrate = { cpu = \"10%\" }\n",
        ] {
            assert!(goes("", listener), "{listener}");
        }
        assert!(goes("label-files = true\n", ""));
        assert!(goes("schedule = \"auto\"\n[container.some]\ncpu.weight = 7\n", ""));
    }

    #[test]
    fn a_control_that_waits_for_a_level_goes_by_time_where_the_cpu_is_a_threshold() {
        let waits = "isolate = { above = 1000, for = \"10s\", when = \"busy\" }\n";
        let rule = "[[listener.web.request]]\npath = \"/a\"\nrefuse = \"503\"\nwhen = \"overloaded\"\n";
        for listener in [waits, rule] {
            assert!(goes("", listener), "by default it is: {listener}");
            let others = "[overload]\nbusy = { queue = \"25%\" }\noverloaded = { drops = 1000 }\n";
            assert!(!goes(others, listener), "{listener}");
        }
    }
}
