// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the reading commands have in common: a look at what is in force, by root or through the agent, and a container found by
//! its path.

use std::time::{Duration, Instant};

use crate::failure::{Failure, Result};
use fief_agent::ask::{Ask, ChargeQuestion, Refusal};
use fief_control::{
    Charges, CostView, Error, ErrorKind, Explanation, Fief, FrontView, Question, QueueView, Snapshot, Status, Told,
};

/// Between two questions of one who follows; the agent keeps its answer for about as long.
const FOLLOWED: Duration = Duration::from_millis(100);

/// What `top` shows.
#[derive(Clone, Debug)]
pub struct Seen {
    pub snapshot: Snapshot,
    /// Requests that wait in front of servers.
    pub queues: Vec<QueueView>,
}

/// Where nobody waits.
impl From<Snapshot> for Seen {
    fn from(snapshot: Snapshot) -> Self {
        Self { snapshot, queues: Vec::new() }
    }
}

/// Where snapshots come from: the kernel, the agent, a record, or a test.
pub trait Source {
    fn look(&mut self) -> Result<Snapshot>;

    /// With the queues, which a record does not hold.
    fn see(&mut self) -> Result<Seen> {
        self.look().map(Seen::from)
    }

    /// By the clock that [`Source::wait`] waits by: that of history runs as fast as it is read.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Until the next look.
    fn wait(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Reads what is in force.
pub enum Reader {
    /// From the kernel.
    Kernel(Fief),
    /// From the agent, which reads there for members of its group.
    Agent(Ask),
}

impl Reader {
    pub fn open() -> Result<Self> {
        let fief = Fief::from_env()?;
        Ok(match nix::unistd::geteuid().is_root() || fief.installed() {
            true => Self::Kernel(fief),
            false => Self::Agent(Ask::of(&fief)),
        })
    }

    pub fn front(&self) -> Result<FrontView> {
        self.read(Fief::front, Ask::front)?.ok_or_else(|| self.nothing())
    }

    /// What clients cost; the next reading is within `lasts`.
    pub fn costs(&self, lasts: Duration) -> Result<CostView> {
        self.read(|fief| fief.costs(lasts), Ask::costs)?.ok_or_else(|| self.nothing())
    }

    /// How it stands with a client, and what the policy in force says about it.
    pub fn explain(&self, question: &Question) -> Result<Explanation> {
        self.read(|fief| fief.explain(question), |ask| ask.explain(question))?.ok_or_else(|| self.nothing())
    }

    /// Tells what happens from now on, until `goes_on` says no or nothing is in force any more.
    pub fn follow(&self, goes_on: impl Fn() -> bool, mut each: impl FnMut(Told) -> Result<()>) -> Result<()> {
        let ask = match self {
            Self::Kernel(fief) if fief.installed() => return fief.follow(goes_on, each),
            Self::Kernel(_) => return Err(self.nothing()),
            Self::Agent(ask) => ask,
        };
        let recent = || self.read(|fief| fief.recent(FOLLOWED), |_| ask.recent());
        let mut seen = recent()?.ok_or_else(|| self.nothing())?.newest;
        while goes_on() {
            let Some(recent) = recent()? else { break };
            recent.since(&mut seen).into_iter().try_for_each(&mut each)?;
            std::thread::sleep(FOLLOWED);
        }
        Ok(())
    }

    /// What a container is charged for from now on, by the agent; root's command watches by itself.
    pub fn charges(&self, question: &ChargeQuestion) -> Result<Charges> {
        let from_kernel = |fief: &Fief| {
            let mut watch = fief.watch(&question.container, question.lasts)?;
            std::thread::sleep(question.lasts);
            watch.look(question.lasts)
        };
        self.read(from_kernel, |ask| ask.charges(question))?.ok_or_else(|| self.nothing())
    }

    /// `None`: nothing is in force, as root or the agent knows.
    pub fn status(&self) -> Result<Option<Status>> {
        self.read(Fief::status, Ask::status)
    }

    pub fn nothing(&self) -> Failure {
        match self {
            Self::Agent(_) => nothing_in_force(true, None, &[]),
            Self::Kernel(_) => nothing(),
        }
    }

    fn read<T>(
        &self,
        from_kernel: impl Fn(&Fief) -> fief_control::Result<T>,
        from_agent: impl Fn(&Ask) -> std::result::Result<T, Refusal>,
    ) -> Result<Option<T>> {
        match self {
            Self::Kernel(fief) => match from_kernel(fief) {
                Err(error) if error.kind() == ErrorKind::NotFound && !fief.installed() => Ok(None),
                read => Ok(Some(read?)),
            },
            Self::Agent(ask) => match from_agent(ask) {
                Ok(view) => Ok(Some(view)),
                Err(Refusal::Nothing) => Ok(None),
                // whether anything is in force, this user cannot see
                Err(Refusal::Absent) => Err(nothing_seen_by(false)),
                Err(refusal @ Refusal::Denied) => Err(Failure::new(format!(
                    "{refusal}; become root, or have root add this user to the group of {}",
                    ask.socket().display()
                ))),
                Err(refusal @ Refusal::Wrong(_)) => Err(Failure::usage(refusal.to_string())),
                Err(refusal) => Err(Failure::new(refusal.to_string())),
            },
        }
    }
}

impl Source for Reader {
    fn look(&mut self) -> Result<Snapshot> {
        self.read(Fief::snapshot, Ask::snapshot)?.ok_or_else(|| self.nothing())
    }

    fn see(&mut self) -> Result<Seen> {
        let queues = self.read(Fief::queue_views, Ask::queues)?.ok_or_else(|| self.nothing())?;
        Ok(Seen { snapshot: self.look()?, queues })
    }
}

/// An error of a command that changes something or reads what only root may, with the usual cause of it.
pub fn failure(fief: &Fief, error: Error) -> Failure {
    match error.kind() {
        ErrorKind::NotFound if !fief.installed() => nothing(),
        _ => error.into(),
    }
}

/// There is nothing to read.
pub fn nothing() -> Failure {
    nothing_seen_by(nix::unistd::geteuid().is_root())
}

fn nothing_seen_by(is_root: bool) -> Failure {
    let named = std::env::var("FIEF_SCOPE").ok().filter(|scope| !scope.is_empty());
    nothing_in_force(is_root, named.as_deref(), &Fief::scopes())
}

/// `named`: the scope that was asked for; `others`: those in force.
fn nothing_in_force(is_root: bool, named: Option<&str>, others: &[String]) -> Failure {
    match is_root {
        _ if !others.is_empty() => {
            let here = named.map_or_else(
                || "nothing is in force".to_owned(),
                |scope| format!("nothing is in force in the scope {scope}"),
            );
            let names = others.join(", ");
            let near = named.and_then(|scope| fief_policy::nearest(scope, others.iter().map(String::as_str)));
            let near = near.map(|near| format!("did you mean {near}? ")).unwrap_or_default();
            Failure::new(format!(
                "{here}; {near}set FIEF_SCOPE to one that is: {names}, or put a policy in force by `fief apply FILE`"
            ))
        }
        true => Failure::new("nothing is in force; put a policy in force by `fief apply FILE`"),
        false => Failure::new(
            "nothing is in force as far as this user can see, and no agent serves; become root, or have root start `fief agent` or \
             put a policy in force by `fief apply FILE`",
        ),
    }
}

/// Of listeners of this policy, after a name that is none of them.
pub fn no_listener(wanted: &str, names: &[&str], policy: &str) -> Failure {
    Failure::new(fief_control::no_listener(wanted, names, policy))
}

/// Position of a container. In an old record, another one can have the path of a policy's.
pub fn find(snapshot: &Snapshot, path: &str) -> Result<usize> {
    let wanted = path.strip_prefix('/').unwrap_or(path);
    let views = snapshot.containers.iter().enumerate();
    let found = views.filter(|(_, view)| view.path == wanted || view.path == path);
    found.min_by_key(|(_, view)| !view.policy).map(|(at, _)| at).ok_or_else(|| {
        let paths = snapshot.containers.iter().map(|view| view.path.as_str());
        let advice = match fief_policy::nearest_path(wanted, paths) {
            Some(path) => format!("did you mean {path}? `fief ls` lists all"),
            None => "`fief ls` lists all".to_owned(),
        };
        Failure::new(format!("no container is called {path}; {advice}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::sample;

    #[test]
    fn a_container_is_found_by_its_path() {
        let snapshot =
            sample::snapshot(vec![sample::container("shop", 8, None), sample::container("shop/gold", 9, Some(8))]);
        assert_eq!(find(&snapshot, "shop/gold").ok(), Some(1));
        assert_eq!(find(&snapshot, "/shop").ok(), Some(0));
        let failure = find(&snapshot, "gold").expect_err("no such path");
        assert_eq!(failure.to_string(), "no container is called gold; did you mean shop/gold? `fief ls` lists all");
        let failure = find(&snapshot, "shop/gol").expect_err("no such path");
        assert!(failure.to_string().contains("did you mean shop/gold?"), "{failure}");
        let failure = find(&snapshot, "tenant").expect_err("no such path");
        assert_eq!(failure.to_string(), "no container is called tenant; `fief ls` lists all");
    }

    #[test]
    fn a_path_is_the_policys_whoever_has_it_too() {
        let mut namesake = sample::container("shop/vip", 9, Some(8));
        namesake.policy = false;
        let vip = sample::container("shop/vip", 10, Some(8));
        assert_eq!(find(&sample::snapshot(vec![namesake, vip]), "shop/vip").ok(), Some(1));
    }

    #[test]
    fn without_an_agent_nobody_can_tell_that_nothing_is_in_force() {
        let reader = Reader::Agent(Ask::of(&Fief::with_scope("look-without-agent")));
        let failure = reader.status().expect_err("nobody answers");
        assert_eq!(failure.code(), 1);
        assert!(failure.to_string().contains("`fief apply FILE`"), "{failure}");
    }

    #[test]
    fn nothing_in_force_comes_with_the_remedy() {
        for is_root in [true, false] {
            assert!(nothing_in_force(is_root, None, &[]).to_string().contains("`fief apply FILE`"));
        }
        let scopes = ["fief".to_owned(), "stage".to_owned()];
        let said = nothing_in_force(true, Some("stag"), &scopes).to_string();
        assert!(
            said.starts_with(
                "nothing is in force in the scope stag; did you mean stage? set FIEF_SCOPE to one that is: fief, stage"
            ),
            "{said}"
        );
    }
}
