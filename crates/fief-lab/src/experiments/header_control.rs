// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures 5, 6 and 9 to 11 and Table 4 of the overload paper: control by connection and by URL.
//!
//! Five questions, each put to nginx by itself, to nginx with limit_req, and to nginx or blocking workers under Fief:
//! what paying clients keep beside a crowd that is limited at its SYNs or by its URL; how exact the limit is; what is
//! left of a URL's goodput when 2.5 times its limit is asked for; what a URL's priority gives; and, in a full run, how all
//! this goes with the limit's rate and burst.

mod outcome;
mod policy;
mod steps;

use crate::effort::is_least;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::experiments::overload::{self, COST_US, Page, Plan, Program, Site, Way};
use fief_testkit::Topology;
use steps::Setting;

fn plan(quick: bool) -> Plan {
    match quick {
        _ if is_least() => Plan { rounds: 1, seconds: 0.2, warm_up: 0.1, retries: 0 },
        true => Plan { rounds: 3, seconds: 2.0, warm_up: 0.5, retries: 0 },
        false => Plan { rounds: 5, seconds: 2.0, warm_up: 0.5, retries: 2 },
    }
}

fn ways(setting: &Setting, page: &Page) -> Vec<Way> {
    let nginx = |limits| Program::Nginx { text: page.text.clone(), limits };
    let mut ways = vec![
        Way {
            name: "nginx".to_owned(),
            title: "nginx".to_owned(),
            site: Site { program: nginx(setting.nginx_limits()), policy: None },
            steps: setting.nginx_steps(),
        },
        Way {
            name: "fief".to_owned(),
            title: "nginx under Fief".to_owned(),
            site: Site { program: nginx(Vec::new()), policy: Some(policy::limits(setting)) },
            steps: setting.fief_steps(),
        },
        Way {
            name: "priority".to_owned(),
            title: "workers under Fief".to_owned(),
            site: Site { program: Program::Workers, policy: Some(policy::priorities(setting)) },
            steps: setting.priority_steps(),
        },
    ];
    ways.extend(setting.sweeps().into_iter().map(|(name, swept, steps)| Way {
        title: format!("nginx under Fief, {name}"),
        name,
        site: Site { program: nginx(Vec::new()), policy: Some(policy::limits(&swept)) },
        steps,
    }));
    ways
}

pub fn run(quick: bool) -> Result<Outcome> {
    let plan = plan(quick);
    let topology = Topology::new()?;
    let page = Page::measure(&topology, COST_US)?;
    let setting = Setting::of(page.capacity, quick);
    let (ways, notes) = overload::usable(ways(&setting, &page));
    let sample = overload::run("header-control", &plan, &topology, &ways)?;
    Ok(outcome::of(&sample, &setting, notes))
}
