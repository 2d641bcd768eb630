// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stands: when the program that steers connections (bpf/front/steer) is attached to the network namespace of the policy.
//!
//! The kernel runs it within each lookup of a listening socket, the front door's own among them. So it is attached only while something
//! needs it:
//!
//!   some class has a listening socket of its own         else connections go where the kernel's lookup leads them
//!   connections that passed no door are counted          it asks for the note that the door leaves of the others
//!   a cgroup is managed, or a filter is left of one      its servers may divide their clients at any time
//!   no interface is guarded                              what is attached then tells whether the network namespace is there still
//!
//! It is attached before the policy comes into force, or the cgroup is managed, and detached behind the next policy.
//! Limits: whoever manages a cgroup from another network namespace has to see a name of the policy's, or a process in it.

use std::os::fd::AsFd;

use fief_bpf::map::MapCore;
use fief_bpf::{Error, ErrorKind, Result, open};
use fief_policy::{Listener, Policy, Serve};

use crate::Fief;
use crate::front::{Doors, Others};
use crate::namespace::{self, Namespace};

/// Whether the policy itself needs it, where so many interfaces are guarded.
fn needed_by(policy: &Policy, interfaces: usize) -> bool {
    let is_served_apart = |listener: &Listener| listener.serve != Serve::Shared;
    interfaces == 0 || Others::of(policy).notes || policy.listeners.iter().any(is_served_apart)
}

impl Fief {
    /// Whether anything needs it under this policy.
    pub(crate) fn needs_steering(&self, policy: &Policy, doors: &Doors) -> Result<bool> {
        Ok(needed_by(policy, doors.interfaces.len()) || self.has_any("units")? || self.has_any("filter_sets")?)
    }

    fn has_any(&self, name: &str) -> Result<bool> {
        let map = self.map(name)?;
        let first = map.keys().next();
        Ok(first.is_some())
    }

    /// After a policy has come into force: detaches it unless something needs it.
    pub(crate) fn stop_steering(&self, policy: &Policy, doors: &Doors) -> Result<()> {
        if self.needs_steering(policy, doors)? { Ok(()) } else { open::detach_netns(self.pins()) }
    }

    /// Before a cgroup is managed: attaches it where a policy is in force. Errors: [`ErrorKind::NotFound`] nothing here leads to the
    /// policy's network namespace.
    pub(crate) fn steer_for_units(&self) -> Result<()> {
        let there = open::steered(self.pins()).filter(|netns| !open::steers(self.pins(), netns.inode));
        let Some(netns) = there else { return Ok(()) };
        let number = netns.inode;
        let attach = || open::attach_netns(self.pins(), Namespace::of_caller()?.file.as_fd(), number);
        match namespace::within(netns, attach)? {
            None if open::is_there(self.pins(), number) => Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "the network namespace of the policy (net:[{number}]) has no name here, and no process of it is seen"
                ),
            )
            .remedy("run fief in that network namespace, or where its processes are seen (--pid=host)")),
            // or nobody is served there any more
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A policy with `front` for its interfaces and one listener of two classes with these lines.
    fn policy(front: &str, listener: &str) -> Policy {
        let text = format!(
            "version = 1\n[front]\n{front}\n[container.a]\n[container.b]\n[listener.web]\naddress = \"0.0.0.0:80\"\n{listener}\n\
             [[listener.web.client]]\nfrom = [\"10.0.0.0/8\"]\ncontainer = \"a\"\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"b\"\n"
        );
        fief_policy::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn connections_are_steered_where_classes_have_sockets_or_the_door_can_be_passed_by() {
        const NAMED: &str = "interfaces = [\"eth0\"]";
        let limits = "isolate = { above = 1000, for = \"10s\" }";
        let shared = format!("classes = \"shared\"\n{limits}");
        assert!(!needed_by(&policy(NAMED, &shared), 1));
        assert!(needed_by(&policy(NAMED, &shared), 0), "nothing else is attached");
        assert!(needed_by(&policy("", &shared), 1), "what passes no door is counted");
        for apart in ["classes = \"listeners\"", "copies = \"per-class\""] {
            assert!(needed_by(&policy(NAMED, apart), 1), "{apart}");
        }
    }
}
