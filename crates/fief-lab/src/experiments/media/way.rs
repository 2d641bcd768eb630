// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whose part of the CPU a player and its display server have: the ways that are held against each other.

use std::time::Duration;

use super::cast::Cast;
use super::clip::Work;
use crate::error::Result;
use crate::experiments::cpu::{Groups, Spinner, Stand, bind, weight_beside};

/// Of the machine, for the second player of a shared display server.
const OTHER_PERCENT: u32 = 10;
/// A frame of 40 ms of the CPU in so long is 8 %.
const OTHER_PERIOD: Duration = Duration::from_millis(500);
const HOME: &str = "desk";
const PAYER: &str = "desk/player";
const SHOW: &str = "show";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The kernel's own scheduler, which knows of threads alone.
    Plain,
    /// The same with cgroups: one for both, one for each hog.
    Groups,
    /// A container each, half of the share each.
    Apart,
    /// One container.
    One,
    /// The server works for the container of the player that asks it. It has two players, the second of which is content with its share.
    Shared,
    /// The second player wants all it can get.
    Greedy,
}

impl Way {
    pub const ALL: [Way; 6] = [Way::Plain, Way::Groups, Way::Apart, Way::One, Way::Shared, Way::Greedy];
    pub const FIEF: [Way; 4] = [Way::Apart, Way::One, Way::Shared, Way::Greedy];

    /// As a figure's name begins.
    pub fn name(self) -> &'static str {
        match self {
            Way::Plain => "eevdf",
            Way::Groups => "cgroup",
            Way::Apart => "apart",
            Way::One => "one",
            Way::Shared => "shared",
            Way::Greedy => "greedy",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Way::Plain => "EEVDF",
            Way::Groups => "EEVDF, cgroup weights",
            Way::Apart => "two containers",
            Way::One => "one container",
            Way::Shared => "shared display server",
            Way::Greedy => "shared, greedy second",
        }
    }

    /// The containers of the player and its server, each with its lines.
    pub fn containers(self, percent: u32) -> Vec<(String, String)> {
        let share = |name: &str, part: f64| (name.to_owned(), format!("cpu.share = \"{part}%\""));
        let all = f64::from(percent);
        match self {
            Way::Plain | Way::Groups => Vec::new(),
            Way::Apart => vec![share("player", all / 2.0), share("display", all / 2.0)],
            Way::One => vec![share(SHOW, all)],
            Way::Shared | Way::Greedy => {
                vec![(HOME.to_owned(), String::new()), share(PAYER, all), share("desk/other", f64::from(OTHER_PERCENT))]
            }
        }
    }

    /// How often the second player shows a frame; zero: as often as it can.
    pub fn other_period(self) -> Duration {
        if self == Way::Shared { OTHER_PERIOD } else { Duration::ZERO }
    }

    /// The container that pays for the server's work too, where the server is not in it.
    pub fn payer(self) -> Option<&'static str> {
        matches!(self, Way::Shared | Way::Greedy).then_some(PAYER)
    }

    /// Starts player and server where they belong.
    pub fn cast(self, work: Work, groups: Option<&Groups>) -> Result<Cast> {
        let is_shared = matches!(self, Way::Shared | Way::Greedy);
        let cast = Cast::start(work, is_shared.then_some(HOME), is_shared)?;
        match self {
            Way::Plain => {}
            Way::Groups => put(&cast, groups)?,
            Way::Apart => {
                bind(cast.player(), "player")?;
                bind(cast.display(), "display")?;
            }
            Way::One => {
                bind(cast.player(), SHOW)?;
                bind(cast.display(), SHOW)?;
            }
            Way::Shared | Way::Greedy => {
                bind(cast.player(), PAYER)?;
                if let Some(other) = cast.other() {
                    bind(other, "desk/other")?;
                }
            }
        }
        Ok(cast)
    }
}

fn put(cast: &Cast, groups: Option<&Groups>) -> Result<()> {
    let Some(groups) = groups else { return Ok(()) };
    groups.put(cast.player(), SHOW)?;
    groups.put(cast.display(), SHOW)
}

/// The name of a hog's container or group.
fn hog(number: usize) -> String {
    format!("hog{}", number + 1)
}

/// The groups of `Way::Groups` for so many hogs.
pub fn groups(hogs: usize) -> Result<Groups> {
    Groups::new((0..hogs).map(hog).chain([SHOW.to_owned()]))
}

/// So that both have this part of the CPU beside so many hogs.
pub fn weigh(groups: &Groups, percent: u32, hogs: usize) -> Result<()> {
    groups.weigh(SHOW, weight_beside(f64::from(percent) / 100.0, hogs))
}

/// Puts the containers of the way and of so many hogs into force.
pub fn give(stand: &mut Stand, own: &[(String, String)], hogs: usize) -> Result<()> {
    let hogs: Vec<String> = (0..hogs).map(hog).collect();
    let own = own.iter().map(|(name, given)| (name.as_str(), given.as_str()));
    stand.give(&own.chain(hogs.iter().map(|name| (name.as_str(), ""))).collect::<Vec<_>>())
}

/// So many hogs, stopped; in groups of theirs where there are some.
pub fn hogs(count: usize, groups: Option<&Groups>) -> Result<Vec<Spinner>> {
    (0..count)
        .map(|number| {
            let spinner = Spinner::stopped()?;
            groups.map_or(Ok(()), |groups| groups.put(spinner.pid(), &hog(number)))?;
            Ok(spinner)
        })
        .collect()
}

/// So many hogs, stopped, in containers of theirs.
pub fn bound_hogs(count: usize) -> Result<Vec<Spinner>> {
    (0..count).map(|number| Spinner::start(&hog(number))).collect()
}

/// So many processes that compute, stopped, where player and server are.
pub fn companions(count: usize, groups: Option<&Groups>) -> Result<Vec<Spinner>> {
    let companion = || match groups {
        None => Spinner::start(SHOW),
        Some(groups) => {
            let spinner = Spinner::stopped()?;
            groups.put(spinner.pid(), SHOW)?;
            Ok(spinner)
        }
    };
    (0..count).map(|_| companion()).collect()
}

/// The container of player, server and companions, with an order among their threads.
pub fn ordered(percent: u32, order: &str) -> Vec<(String, String)> {
    vec![(SHOW.to_owned(), format!("cpu.share = \"{percent}%\"\n{order}"))]
}
