// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A way of dealing with an overload, and the steps that it is put through.

use super::crowd::Crowd;
use super::site::Site;
use crate::wanted;

/// What is done about the overload: a server, and what it is put through, in this order.
#[derive(Clone, Debug)]
pub struct Way {
    pub name: String,
    pub title: String,
    pub site: Site,
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub name: String,
    pub crowds: Vec<Crowd>,
    /// Times the plan's.
    pub warm_up: f64,
    pub seconds: f64,
    /// Whether the server's core must be the bottleneck for the step to mean something.
    pub saturates: bool,
}

impl Step {
    pub fn new(name: impl Into<String>, crowds: Vec<Crowd>) -> Step {
        Step { name: name.into(), crowds, warm_up: 1.0, seconds: 1.0, saturates: true }
    }

    /// A step that the server can bear.
    pub fn with_idle_time(mut self) -> Step {
        self.saturates = false;
        self
    }

    /// A step that takes so many times longer until it is steady.
    pub fn slow(mut self, warm_up: f64, seconds: f64) -> Step {
        (self.warm_up, self.seconds) = (warm_up, seconds);
        self
    }
}

/// Those that this machine can do, and for the others why not.
pub fn usable(ways: Vec<Way>) -> (Vec<Way>, Vec<String>) {
    wanted::usable(ways, |way| way.site.check(), |way| way.title.clone())
}
