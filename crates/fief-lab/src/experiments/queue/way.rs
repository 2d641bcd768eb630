// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is done so that one class of clients waits less.

use super::kind::Kind;
use crate::command;
use crate::error::{Error, Kind as ErrorKind, Result};
use crate::load::Protocol;
use fief_testkit::{Client, Family, Feature};

pub const PORT: u16 = 80;
/// The server behind HAProxy.
pub const BEHIND: u16 = 8080;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// Nothing.
    Plain,
    /// nginx's own limit of the others' requests under way.
    LimitConn,
    /// HAProxy's priority classes before the server, on its core, with so many requests at the server at once.
    Haproxy(u32),
    /// Fief admits requests when their heads are whole; nobody waits.
    Admit,
    /// Fief's class listeners: the shim inside the server takes the better class's connections first.
    Shim,
    /// Fief's queue, and the server has as many requests at once as it has workers.
    Queue,
    /// Fief's queue as it comes.
    Auto,
}

impl Way {
    pub fn name(self) -> String {
        match self {
            Way::Plain => "plain".to_owned(),
            Way::LimitConn => "limit_conn".to_owned(),
            Way::Haproxy(most) => format!("haproxy{most}"),
            Way::Admit => "admit".to_owned(),
            Way::Shim => "shim".to_owned(),
            Way::Queue => "queue".to_owned(),
            Way::Auto => "auto".to_owned(),
        }
    }

    pub fn title(self) -> String {
        match self {
            Way::Plain => "plain".to_owned(),
            Way::LimitConn => "limit_conn".to_owned(),
            Way::Haproxy(most) => format!("HAProxy, maxconn {most}"),
            Way::Admit => "Fief, admission alone".to_owned(),
            Way::Shim => "Fief, class listeners".to_owned(),
            Way::Queue => "Fief's queue".to_owned(),
            Way::Auto => "Fief's queue, auto".to_owned(),
        }
    }

    /// Whether it can be tried with this server at all.
    pub fn is_for(self, kind: Kind) -> bool {
        match self {
            Way::LimitConn | Way::Shim => kind == Kind::Nginx,
            // as a proxy of connections it would order something else
            Way::Haproxy(_) => kind.protocol() == Protocol::Http,
            _ => true,
        }
    }

    /// The lines of its policy's listener, if it has a policy.
    fn listener(self, kind: Kind) -> Option<String> {
        let line = match self {
            Way::Plain | Way::LimitConn | Way::Haproxy(_) => return None,
            Way::Admit => "classes = \"shared\"\nadmit = true".to_owned(),
            Way::Shim => "classes = \"listeners\"".to_owned(),
            Way::Queue => format!("queue = {{ in-service = {} }}", kind.workers()),
            Way::Auto => "queue = true".to_owned(),
        };
        Some(line)
    }

    pub fn policy(self, kind: Kind) -> Option<String> {
        self.listener(kind).map(|line| policy(&line))
    }

    /// Whether the machine, and this Fief, can do it.
    pub fn check(self) -> Result<()> {
        match self.policy(Kind::Nginx) {
            Some(policy) => command::can_run_with(&policy),
            None if matches!(self, Way::Haproxy(_)) && !Feature::Haproxy.is_there() => {
                Err(Error::new(ErrorKind::Missing, "haproxy is not installed"))
            }
            None => Ok(()),
        }
    }
}

/// Two classes: high before low.
pub fn policy(listener: &str) -> String {
    let gold = Client::High.prefix(Family::V4);
    format!(
        "version = 1\nmode = \"enforce\"\n\n[container.gold]\ncpu.priority = 200\n\n[container.browse]\n\n\
         [listener.web]\naddress = \"0.0.0.0:{PORT}\"\n{listener}\n\n\
         [[listener.web.client]]\nfrom = [\"{gold}\"]\ncontainer = \"gold\"\n\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"browse\"\n"
    )
}

/// The same for a server behind a local proxy: at the loopback and nowhere else.
pub fn policy_at_loopback(listener: &str) -> String {
    let inside = policy(listener).replace("0.0.0.0", "127.0.0.1");
    inside.replace("[container.gold]", "[front]\ninterfaces = [\"lo\"]\n\n[container.gold]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_door_is_at_the_loopback_where_the_server_is() {
        let policy = policy_at_loopback("queue = true");
        assert!(policy.contains("[front]\ninterfaces = [\"lo\"]\n"), "{policy}");
        assert!(policy.contains("address = \"127.0.0.1:80\"\nqueue = true\n"), "{policy}");
    }

    #[test]
    fn every_policy_is_one_that_fief_knows_or_says_why_not() {
        let policy = policy("admit = true");
        assert!(policy.contains("cpu.priority = 200") && policy.contains("address = \"0.0.0.0:80\"\nadmit = true"));
        assert!(Way::Plain.policy(Kind::Go).is_none() && Way::Haproxy(1).policy(Kind::Go).is_none());
        let two = Way::Queue.policy(Kind::Nginx2);
        assert!(two.is_some_and(|policy| policy.contains("queue = { in-service = 2 }")));
    }
}
