// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The CPU of a container, and the order among its own threads.

use std::path::PathBuf;

use serde::Serialize;

use crate::diagnostic::{Findings, Kind};
use crate::quantity::Refused;
use crate::reader::{Named, View};
use crate::{name, quantity};

/// The scheduler's own (bpf/sched/policies/edf.h).
const EDF_PERIOD_NS: u64 = 100_000_000;
const EDF_BUDGET_NS: u64 = 10_000_000;

/// Shares and limits are parts per million of the whole machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Guaranteed; 0: nothing. A parent that names no share of its own has the sum of its children's.
    pub share_ppm: u32,
    /// At most; 0: no limit.
    pub limit_ppm: u32,
    /// Among siblings, 1 to 10,000.
    pub weight: u32,
    /// Higher goes first; 0: only when nothing else wants the CPU; at most 65,535.
    pub priority: u32,
    /// Which of its own threads goes first.
    pub policy: CpuPolicy,
    /// Of each thread, where that is `edf`; 0: the scheduler's own, 100 ms and 10 ms.
    pub period_ns: u64,
    pub budget_ns: u64,
}

impl Default for Cpu {
    fn default() -> Self {
        Self {
            share_ppm: 0,
            limit_ppm: 0,
            weight: 100,
            priority: 100,
            policy: CpuPolicy::default(),
            period_ns: 0,
            budget_ns: 0,
        }
    }
}

impl Cpu {
    /// What is said of how the CPU is divided, by the names of a policy, but for the priority: that of a class orders accepting and
    /// serving, without a division ([`Policy::dividing`](crate::Policy::dividing)).
    pub fn given(&self) -> impl Iterator<Item = &'static str> + use<> {
        let given = [
            ("cpu.share", self.share_ppm != 0),
            ("cpu.limit", self.limit_ppm != 0),
            ("cpu.weight", self.weight != Self::default().weight),
            ("cpu.policy", self.policy != CpuPolicy::default()),
        ];
        given.into_iter().filter(|(_, is)| *is).map(|(name, _)| name)
    }

    /// Whether it goes before or after those that have the default.
    pub(crate) fn has_priority(&self) -> bool {
        self.priority != Self::default().priority
    }
}

/// Which of a container's own threads goes first (bpf/sched/policies).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuPolicy {
    /// Each has a part by its nice value.
    #[default]
    Fair,
    /// Who woke up first, until it sleeps.
    Fifo,
    /// A slice each, in turn.
    Rr,
    /// Whose period ends first: a budget in each period for each thread.
    Edf,
    /// Drawn, by tickets as the nice values say.
    Lottery,
    /// By the policy's object of this place (`Policy::orders`).
    Object(u8),
}

/// An order that was built outside of Fief.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Order {
    pub name: String,
    /// Its object file.
    pub object: PathBuf,
}

impl CpuPolicy {
    const ALL: [Self; 5] = [Self::Fair, Self::Fifo, Self::Rr, Self::Edf, Self::Lottery];

    /// As policies write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fair => "fair",
            Self::Fifo => "fifo",
            Self::Rr => "rr",
            Self::Edf => "edf",
            Self::Lottery => "lottery",
            Self::Object(_) => "object",
        }
    }

    /// Whether it takes a period and a budget.
    fn has_times(self) -> bool {
        matches!(self, Self::Edf | Self::Object(_))
    }

    fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == word)
    }
}

/// The policy among its own threads, and the times of `edf`.
pub(crate) fn read_order(view: &View<'_, '_>, cpu: &mut Cpu, orders: &[Order], findings: &mut Findings) {
    let names: Vec<_> = orders.iter().map(|order| order.name.as_str()).collect();
    cpu.policy = match view.choice_or_name("policy", &names, findings) {
        Some(Ok(word)) => CpuPolicy::named(word).unwrap_or_default(),
        Some(Err(at)) => CpuPolicy::Object(at as u8),
        None => CpuPolicy::default(),
    };
    let period = view.quantity("period", quantity::period, findings);
    let budget = view.quantity("budget", quantity::period, findings);
    for (key, given) in [("period", &period), ("budget", &budget)] {
        if let Some((_, span)) = given.as_ref().filter(|_| !cpu.policy.has_times()) {
            let message =
                format!("`cpu.{key}` is a time of deadlines, and the container's policy is `{}`", cpu.policy.name());
            let remedy = format!("write cpu.policy = \"edf\", or remove cpu.{key}");
            findings.add(Kind::Contradiction, span.clone(), message, "`cpu.policy = \"edf\"` beside it", remedy);
        }
    }
    cpu.period_ns = period.map_or(0, |(ns, _)| ns);
    let is_edf = cpu.policy == CpuPolicy::Edf;
    let default = if is_edf { EDF_PERIOD_NS } else { u64::MAX };
    let whole = if cpu.period_ns == 0 { default } else { cpu.period_ns };
    let Some((budget_ns, span)) = budget else {
        // its own, or the whole of a shorter period
        cpu.budget_ns = if is_edf && whole < EDF_BUDGET_NS { whole } else { 0 };
        return;
    };
    cpu.budget_ns = budget_ns;
    if budget_ns > whole {
        let whole = quantity::as_time(whole);
        let message = format!("a budget of {} does not fit into a period of {whole}", quantity::as_time(budget_ns));
        let remedy = format!("lower cpu.budget to \"{whole}\" or less, or raise cpu.period");
        findings.add(Kind::Contradiction, span, message, format!("at most \"{whole}\""), remedy);
    }
}

/// Objects of one policy that the scheduler has places for (FIEF_OBJECTS).
pub const ORDERS_MOST: usize = 4;

/// The orders that the operator brings.
pub(crate) fn read_orders(policy: &View<'_, '_>, findings: &mut Findings) -> Vec<Order> {
    let mut orders: Vec<Order> = Vec::new();
    for Named { name, name_span, view } in policy.named("cpu-policy", findings) {
        if let Err(Refused { message, remedy }) = name::check_name(name) {
            findings.add(Kind::Name, name_span, message, name::EXPECTED_NAME, remedy);
            continue;
        }
        if CpuPolicy::named(name).is_some() {
            let remedy = format!("choose another name, for example \"my-{name}\"");
            findings.add(
                Kind::Name,
                name_span,
                format!("`{name}` is an order of Fief's own"),
                name::EXPECTED_NAME,
                remedy,
            );
            continue;
        }
        if orders.len() == ORDERS_MOST {
            let message = format!("a policy has at most {ORDERS_MOST} orders of its own");
            let expected = format!("at most {ORDERS_MOST} [cpu-policy]");
            findings.add(Kind::Value, name_span, message, expected, "remove one that no container needs");
            continue;
        }
        let object = match view.text("object", findings) {
            Some((path, _)) if path.starts_with('/') => path.into(),
            Some((path, span)) => {
                let remedy = format!("write object = \"/etc/fief/{path}\", or where it is");
                view.refuse("object", span, &format!("\"{path}\" is no full path"), remedy, findings);
                PathBuf::new()
            }
            None => {
                view.missing("object", findings);
                PathBuf::new()
            }
        };
        orders.push(Order { name: name.to_owned(), object });
    }
    orders
}
