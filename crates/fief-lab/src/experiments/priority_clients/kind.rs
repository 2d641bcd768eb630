// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ways to serve one class of clients better, each as a server on port 80 of the testbed.

use crate::command::{self, DOWN, PolicyFile};
use crate::error::{Error, Kind as ErrorKind, Result};
use fief_testkit::{
    Client, Family, Feature, Haproxy, HaproxyConfig, Nginx, NginxConfig, Process, Topology, pin_command, wait_ready,
};

const PORT: u16 = 80;
/// nginx behind HAProxy.
const BEHIND: u16 = 8080;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Debian's nginx with one worker, and nothing else.
    Plain,
    /// A server that handles its high-priority connections first, on an unmodified kernel.
    Application,
    /// HAProxy's priority classes in front of one nginx, with so many requests at a time behind it.
    Haproxy(u8),
    /// One nginx with one worker; the classes exist only as containers.
    Single,
    /// One copy of nginx per class, each in its container.
    Copies,
}

impl Kind {
    pub const HAPROXY: [Kind; 4] = [Kind::Haproxy(1), Kind::Haproxy(2), Kind::Haproxy(4), Kind::Haproxy(8)];
    pub const ALL: [Kind; 8] = [
        Kind::Plain,
        Kind::Application,
        Kind::HAPROXY[0],
        Kind::HAPROXY[1],
        Kind::HAPROXY[2],
        Kind::HAPROXY[3],
        Kind::Single,
        Kind::Copies,
    ];

    /// The first part of its figures' names.
    pub fn name(self) -> String {
        match self {
            Kind::Plain => "plain".to_owned(),
            Kind::Application => "application".to_owned(),
            Kind::Haproxy(behind) => format!("haproxy{behind}"),
            Kind::Single => "single".to_owned(),
            Kind::Copies => "copies".to_owned(),
        }
    }

    pub fn title(self) -> String {
        match self {
            Kind::Plain => "plain nginx".to_owned(),
            Kind::Application => "application's preference".to_owned(),
            Kind::Haproxy(behind) => format!("HAProxy, maxconn {behind}"),
            Kind::Single => "Fief, one nginx".to_owned(),
            Kind::Copies => "Fief, copies".to_owned(),
        }
    }

    /// Whether the machine can do it.
    pub fn check(self) -> Result<()> {
        let need = |feature: Feature, name: &str| match feature.is_there() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Missing, format!("{name} is not installed"))),
        };
        need(Feature::Nginx, "nginx")?;
        match self {
            Kind::Plain | Kind::Application => Ok(()),
            Kind::Haproxy(_) => need(Feature::Haproxy, "haproxy"),
            Kind::Single | Kind::Copies => command::can_run(),
        }
    }

    /// The policy of the two that have one.
    pub fn policy(self) -> Option<String> {
        let reach = match self {
            Kind::Single => "classes = \"listeners\"\n",
            Kind::Copies => "copies = \"per-class\"\n",
            _ => return None,
        };
        let gold = Client::High.prefix(Family::V4);
        Some(format!(
            "version = 1\nmode = \"enforce\"\n\n[container.gold]\ncpu.priority = 200\n\n[container.browse]\n\n\
             [listener.web]\naddress = \"0.0.0.0:{PORT}\"\n{reach}\n\
             [[listener.web.client]]\nfrom = [\"{gold}\"]\ncontainer = \"gold\"\n\n\
             [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"browse\"\n"
        ))
    }

    /// Starts it on the server's core; ready when it answers.
    pub fn start(self, topology: &Topology) -> Result<Server> {
        match self {
            Kind::Plain => Ok(Server::Nginx { _guard: nginx(topology, PORT)? }),
            Kind::Application => application(topology),
            Kind::Haproxy(behind) => haproxy(topology, behind),
            Kind::Single | Kind::Copies => {
                let policy = PolicyFile::new(&self.policy().expect("these two have a policy"))?;
                let config = nginx_config(PORT)?;
                let mut command = policy.run(&topology.server, "nginx", config.arguments())?;
                pin_command(&mut command, Topology::server_cpu());
                let process = Nginx::start_command(&topology.server, command, config)?;
                Ok(Server::Fief { process: Some(process), _policy: policy })
            }
        }
    }
}

/// A running server.
#[derive(Debug)]
pub enum Server {
    Nginx { _guard: Nginx },
    Application { _guard: Process },
    Haproxy { _front: Haproxy, _behind: Nginx },
    Fief { process: Option<Nginx>, _policy: PolicyFile },
}

impl Server {
    /// Ends it; an error if Fief did not come down in order.
    pub fn stop(mut self) -> Result<()> {
        let Server::Fief { process, .. } = &mut self else {
            return Ok(());
        };
        let Some(process) = process.take() else {
            return Ok(());
        };
        match process.stop(DOWN) {
            Some(_) => Ok(()),
            None => Err(Error::failed(format!("fief run did not end within {DOWN:?}"))),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A killed `fief run` would leave its programs in the kernel, so it is asked first.
        if let Server::Fief { process, .. } = self
            && let Some(process) = process.take()
        {
            process.stop(DOWN);
        }
    }
}

/// IPv4 only: the policies name one address.
fn nginx_config(port: u16) -> Result<NginxConfig> {
    Ok(NginxConfig::listening(port, &[&port.to_string()], 1, "")?)
}

fn nginx(topology: &Topology, port: u16) -> Result<Nginx> {
    let config = nginx_config(port)?;
    let mut command = topology.server.command("nginx");
    command.args(config.arguments()).stderr(std::process::Stdio::null());
    pin_command(&mut command, Topology::server_cpu());
    Ok(Nginx::start_command(&topology.server, command, config)?)
}

fn application(topology: &Topology) -> Result<Server> {
    let mut command = command::child("lab-server")?;
    topology.server.enter(&mut command);
    command.arg(PORT.to_string());
    pin_command(&mut command, Topology::server_cpu());
    let mut process = Process::start(command)?;
    wait_ready(&topology.server, &mut process, PORT, None)?;
    Ok(Server::Application { _guard: process })
}

fn haproxy(topology: &Topology, at_once: u8) -> Result<Server> {
    let behind = nginx(topology, BEHIND)?;
    let rules = format!(
        "    acl gold src {}\n    http-request set-priority-class int(-10) if gold\n    \
         http-request set-priority-class int(10) unless gold",
        Client::High.prefix(Family::V4)
    );
    // Few requests at a time at nginx: only what waits in HAProxy can be put in order.
    let config = HaproxyConfig::new(PORT, BEHIND, &rules, &format!("maxconn {at_once}"))?;
    let mut command = topology.server.command("haproxy");
    pin_command(&mut command, Topology::server_cpu());
    let front = Haproxy::start_command(&topology.server, command, config)?;
    Ok(Server::Haproxy { _front: front, _behind: behind })
}
