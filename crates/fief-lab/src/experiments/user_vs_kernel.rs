// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures 12 and 13 of the overload paper: the same limit kept by the server itself and by the kernel.
//!
//! Well-behaved clients saturate nginx. Beside them a crowd asks for more and more, and is limited to ten requests a
//! second: by nginx's own limit_req, by Fief at the crowd's SYNs, and by Fief at the crowd's URL. What the well-behaved
//! keep is what refusing the others leaves. At the URL the paper's kernel resets the connection (section 3.3), and calls an
//! answer friendlier (section 4.5.2): both are measured. There refused clients are not punished, so that each stage shows what
//! it costs; once more they are, as an operator would have it: who was refused has no connection for a second.
//!
//! What is kept hangs on what a request costs: the cheaper it is, the more refusals fit into the server's time. So all is
//! measured at two costs, and the refused load is a part of the server's capacity at each.

mod outcome;

use crate::effort::is_least;
use crate::error::Result;
use crate::experiments::Outcome;
use crate::experiments::overload::{self, Crowd, Limit, PORT, Page, Plan, Program, Site, Step, Way};
use crate::load::Arrivals;
use fief_testkit::{Client, Family, Topology};

/// What a request costs the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cost {
    /// The paper's server did 392 a second.
    Paper,
    /// A small page of today.
    Cheap,
}

impl Cost {
    const ALL: [Cost; 2] = [Cost::Paper, Cost::Cheap];

    /// CPU time.
    fn us(self) -> u64 {
        match self {
            Cost::Paper => 2500,
            Cost::Cheap => 500,
        }
    }

    /// Ends the names of its figures.
    fn suffix(self) -> &'static str {
        match self {
            Cost::Paper => "",
            Cost::Cheap => "_500us",
        }
    }

    /// The name of a way at this cost.
    fn way(self, way: &str) -> String {
        format!("{way}{}", self.suffix())
    }
}

/// A page of this cost, and what the server can do of it.
#[derive(Clone, Debug)]
struct Priced {
    cost: Cost,
    page: Page,
}

/// The paper's limit of the crowd.
const PER_SECOND: f64 = 10.0;
const BURST: u32 = 2;
/// Webstone's clients there were 100; half of them saturate the core as well.
const GOOD_CLIENTS: usize = 50;
/// Who was refused without a word goes away after this. The SYN is not sent again within it.
const PATIENCE_MS: u64 = 700;

/// Who keeps the limit, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Server,
    Syn,
    Url,
    Answer,
    Penalty,
}

impl Stage {
    const ALL: [Stage; 5] = [Stage::Server, Stage::Syn, Stage::Url, Stage::Answer, Stage::Penalty];

    /// The name of its figure.
    fn figure(self) -> &'static str {
        match self {
            Stage::Server => "server_kept",
            Stage::Syn => "kept",
            Stage::Url => "kept_url",
            Stage::Answer => "kept_url_503",
            Stage::Penalty => "kept_url_penalty",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Stage::Server => "in nginx (limit_req)",
            Stage::Syn => "Fief, at the SYN",
            Stage::Url => "Fief, at the URL, by reset",
            Stage::Answer => "Fief, at the URL, by 503",
            Stage::Penalty => "Fief, at the URL, by 503 and a penalty",
        }
    }

    fn way(self) -> &'static str {
        match self {
            Stage::Server => "server",
            Stage::Syn | Stage::Url | Stage::Answer => "fief",
            Stage::Penalty => "penalty",
        }
    }

    /// The crowd whose requests are limited there.
    fn crowd(self, per_second: f64) -> Crowd {
        let (class, path) = match self {
            Stage::Server => (Client::Middle, "/limited/report"),
            Stage::Syn => (Client::Low, "/shop/report"),
            Stage::Url => (Client::Middle, "/limited/report"),
            Stage::Answer | Stage::Penalty => (Client::Middle, "/answered/report"),
        };
        Crowd::open(class, path, Arrivals::evenly(per_second), PATIENCE_MS)
    }

    fn step(self, part: f64) -> String {
        format!("{} x{part}", self.title())
    }
}

/// The refused load that the bounds are for, as a part of the server's capacity.
const BOUNDED: f64 = 4.0;

/// The refused load, as parts of the server's capacity.
fn parts(quick: bool) -> Vec<f64> {
    if quick || is_least() {
        return vec![0.02, BOUNDED];
    }
    vec![0.02, 0.5, 1.0, 1.5, 2.0, 3.0, BOUNDED, 6.0]
}

fn plan(quick: bool) -> Plan {
    match quick {
        _ if is_least() => Plan { rounds: 1, seconds: 0.2, warm_up: 0.1, retries: 0 },
        true => Plan { rounds: 3, seconds: 2.0, warm_up: 0.5, retries: 0 },
        false => Plan { rounds: 5, seconds: 2.0, warm_up: 0.5, retries: 2 },
    }
}

/// One policy for all stages: the crowd at the SYN comes from the low clients' addresses, those at the URL from others.
fn policy() -> String {
    let low = Client::Low.prefix(Family::V4);
    format!(
        "version = 1\nmode = \"enforce\"\n\n[container.shop]\n\n[container.crowd]\n\n\
         [listener.web]\naddress = \"0.0.0.0:{PORT}\"\nclasses = \"listeners\"\n\n\
         [[listener.web.client]]\nfrom = [\"{low}\"]\ncontainer = \"crowd\"\n\
         syn = {{ rate = {PER_SECOND}, burst = {BURST} }}\n\n\
         [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"shop\"\n\n\
         [[listener.web.request]]\npath = [\"/limited/*\"]\n\
         rate = {{ per-second = {PER_SECOND}, burst = {BURST} }}\nrefuse = \"reset\"\n\n\
         [[listener.web.request]]\npath = [\"/answered/*\"]\n\
         rate = {{ per-second = {PER_SECOND}, burst = {BURST} }}\nrefuse = \"503\"\n"
    )
}

/// The same where a refused client is punished, by the rule that answers.
fn punishing() -> String {
    policy().replace("refuse = \"503\"\n", "refuse = \"503\"\npenalty = \"1s\"\n")
}

fn ways(Priced { cost, page }: &Priced, parts: &[f64]) -> Vec<Way> {
    let limit = Limit { folder: "/limited/", per_second: PER_SECOND, burst: BURST };
    let nginx = |limits| Program::Nginx { text: page.text.clone(), limits };
    let good = || Crowd::closed(Client::High, "/shop/item", GOOD_CLIENTS);
    let steps = |way: &str| {
        let stages = Stage::ALL.into_iter().filter(|stage| stage.way() == way);
        let steps = stages.flat_map(|stage| parts.iter().map(move |&part| (stage, part)));
        steps
            .map(|(stage, part)| Step::new(stage.step(part), vec![good(), stage.crowd(page.capacity * part)]))
            .collect()
    };
    let title = |way: &str| format!("{way}, {} a request", crate::table::cost_ms(cost.us()));
    vec![
        Way {
            name: cost.way("server"),
            title: title("nginx with limit_req"),
            site: Site { program: nginx(vec![limit]), policy: None },
            steps: steps("server"),
        },
        Way {
            name: cost.way("fief"),
            title: title("nginx under Fief"),
            site: Site { program: nginx(Vec::new()), policy: Some(policy()) },
            steps: steps("fief"),
        },
        Way {
            name: cost.way("penalty"),
            title: title("nginx under Fief, with a penalty"),
            site: Site { program: nginx(Vec::new()), policy: Some(punishing()) },
            steps: steps("penalty"),
        },
    ]
}

pub fn run(quick: bool) -> Result<Outcome> {
    let plan = plan(quick);
    let parts = parts(quick);
    let topology = Topology::new()?;
    let price = |cost: Cost| Page::measure(&topology, cost.us()).map(|page| Priced { cost, page });
    let priced = Cost::ALL.into_iter().map(price).collect::<Result<Vec<_>>>()?;
    let (ways, notes) = overload::usable(priced.iter().flat_map(|priced| ways(priced, &parts)).collect());
    let sample = overload::run("user-vs-kernel", &plan, &topology, &ways)?;
    Ok(outcome::of(&sample, &parts, &priced, notes))
}
