// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is in force while the server is loaded: nothing, empty programs where Fief's would be, or Fief.

use crate::command::{PolicyFile, scope};
use crate::error::{Error, Result};
use crate::installation::Installation;
use fief_bpf::floor::{self, Floor, Place};
use fief_bpf::pin::Pins;
use fief_testkit::{NetNs, Topology};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Without,
    /// Empty programs at the same places.
    Floor,
    With,
}

impl Side {
    pub const ALL: [Side; 3] = [Side::Without, Side::Floor, Side::With];

    pub fn title(self) -> &'static str {
        match self {
            Side::Without => "without",
            Side::Floor => "empty programs",
            Side::With => "with admission",
        }
    }
}

/// Puts the sides into force in the network namespace of a server.
#[derive(Debug)]
pub struct Sides<'a> {
    policy: PolicyFile,
    servers: &'a NetNs,
    places: Vec<Place>,
}

/// In force until it is dropped, or ended in order.
#[derive(Debug)]
pub struct Force {
    installation: Option<Installation>,
    floor: Option<Floor>,
}

impl<'a> Sides<'a> {
    /// Applies the policy once, to see where its programs are.
    pub fn new(servers: &'a NetNs) -> Result<Sides<'a>> {
        let policy = PolicyFile::new(&policy())?;
        let installation = Installation::apply_in(&policy, servers)?;
        let places = floor::places(&Pins::new(&scope()))
            .map_err(|error| Error::failed(format!("cannot tell where Fief's programs are: {error}")))?;
        installation.down()?;
        Ok(Sides { policy, servers, places })
    }

    pub fn put(&self, side: Side) -> Result<Force> {
        let installation = match side {
            Side::With => Some(Installation::apply_in(&self.policy, self.servers)?),
            _ => None,
        };
        let floor = match side {
            Side::Floor => Some(
                self.servers
                    .run(|| Floor::attach(&self.places))?
                    .map_err(|error| Error::failed(format!("cannot attach empty programs: {error}")))?,
            ),
            _ => None,
        };
        Ok(Force { installation, floor })
    }

    /// The sections of the programs.
    pub fn sections(&self) -> Vec<&str> {
        self.places.iter().map(Place::section).collect()
    }
}

impl Force {
    pub fn end(self) -> Result<()> {
        drop(self.floor);
        self.installation.map_or(Ok(()), Installation::down)
    }
}

/// Rules as an operator has them; the load's requests match the last one.
fn policy() -> String {
    format!(
        "version = 1\nmode = \"enforce\"\n\n[container.web]\n\n[container.\"web/gold\"]\n\n[container.\"web/browse\"]\n\n\
         [container.\"web/cgi\"]\n\n[front]\ninterfaces = [\"{}\"]\n\n\
         [listener.web]\naddress = \"0.0.0.0:{}\"\nadmit = true\nclasses = \"shared\"\n\
         isolate = {{ above = 1000, for = \"10s\" }}\nproven = {{ rate = 100000, burst = 10000 }}\n\n\
         [[listener.web.client]]\nfrom = [\"10.77.1.0/24\"]\ncontainer = \"web/gold\"\n\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"web/browse\"\n\n\
         [[listener.web.request]]\nmethod = \"POST\"\ncontainer = \"web/cgi\"\n\n\
         [[listener.web.request]]\npath = [\"/cgi-bin/*\", \"*.php\"]\ncontainer = \"web/cgi\"\n\
         rate = {{ per-second = 100, burst = 10 }}\n\n\
         [[listener.web.request]]\nheader = {{ \"user-agent\" = \"Bad*\" }}\nrefuse = \"503\"\n\n\
         [[listener.web.request]]\npath = \"/page.*\"\ncontainer = \"web/browse\"\n",
        Topology::SERVER,
        super::PORT
    )
}
