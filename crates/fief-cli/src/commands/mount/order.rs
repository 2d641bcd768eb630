// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is written into `cmd`: an attribute and its value, as a policy has them, or `bind PID`; one a line.

use fief_control::Attribute;
use fief_policy::Container;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Set(Attribute),
    /// The threads of a process.
    Bind(i32),
}

type Read = fn(&Container) -> Attribute;

/// Attributes by their names in a policy.
const ATTRIBUTES: [(&str, Read); 11] = [
    ("cpu.share", |container| Attribute::CpuShare(container.cpu.share_ppm)),
    ("cpu.limit", |container| Attribute::CpuLimit(container.cpu.limit_ppm)),
    ("cpu.weight", |container| Attribute::CpuWeight(container.cpu.weight)),
    ("cpu.priority", |container| Attribute::CpuPriority(container.cpu.priority)),
    ("memory.max", |container| Attribute::MemoryMax(container.memory_max)),
    ("network.max", |container| Attribute::NetworkMax(container.network.max_bits)),
    ("network.weight", |container| Attribute::NetworkWeight(container.network.weight)),
    ("descendants.max", |container| Attribute::DescendantsMax(container.descendants_max)),
    ("cpu.policy", |container| Attribute::CpuPolicy(container.cpu.policy)),
    ("cpu.period", |container| Attribute::CpuPeriod(container.cpu.period_ns)),
    ("cpu.budget", |container| Attribute::CpuBudget(container.cpu.budget_ns)),
];

/// All lines, or what is wrong with one of them.
pub fn read(text: &[u8]) -> Result<Vec<Order>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "that is no text".to_owned())?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(order).collect()
}

/// Whether it is what a user may have done at once: of processes one, which may have many threads.
pub fn is_short(orders: &[Order]) -> bool {
    orders.iter().filter(|order| matches!(order, Order::Bind(_))).count() <= 1
}

fn order(line: &str) -> Result<Order, String> {
    let mut words = line.split_whitespace();
    let (Some(name), Some(value), None) = (words.next(), words.next(), words.next()) else {
        return Err(format!("expected a name and a value, as in `cpu.weight 200` or `bind 812`, not {line:?}"));
    };
    if name == "bind" {
        let pid = value.parse().ok().filter(|&pid| pid > 0);
        return pid.map(Order::Bind).ok_or_else(|| format!("expected `bind` and a process id, not {value:?}"));
    }
    // what a policy leaves out to have none of it
    if (name, value) == ("cpu.share", "0%") {
        return Ok(Order::Set(Attribute::CpuShare(0)));
    }
    match ATTRIBUTES.into_iter().find(|(own, _)| *own == name) {
        Some((_, read)) => Ok(Order::Set(read(&container(name, value)?))),
        None => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> String {
    let names = ATTRIBUTES.into_iter().map(|(name, _)| name).chain(["bind"]);
    match fief_policy::nearest(name, names.clone()) {
        Some(near) => format!("nothing is called {name:?}; did you mean {near}?"),
        None => format!("nothing is called {name:?}; there are {}", names.collect::<Vec<_>>().join(", ")),
    }
}

/// A policy's reader knows the words, units and ranges.
fn container(name: &str, value: &str) -> Result<Container, String> {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || ".%".contains(character);
    if !value.chars().all(is_plain) {
        return Err(format!("{value:?} is no value of {name}"));
    }
    let value = if value.bytes().all(|byte| byte.is_ascii_digit()) { value.to_owned() } else { format!("\"{value}\"") };
    // times of deadlines, which no other policy has
    let beside = if ["cpu.period", "cpu.budget"].contains(&name) { "cpu.policy = \"edf\"\n" } else { "" };
    let policy = format!("version = 1\n[container.this]\n{beside}{name} = {value}\n");
    let policy = fief_policy::parse(&policy, "cmd").map_err(|wrong| match wrong.iter().next() {
        Some(wrong) => {
            let message = wrong.message.replace(" in [container.this]", "");
            format!("{message}; expected {}", wrong.expected)
        }
        None => format!("{value} is no value of {name}"),
    })?;
    policy.containers.into_iter().next().ok_or_else(|| format!("{value} is no value of {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_units_are_those_of_a_policy() {
        for (line, expected) in [
            ("cpu.weight 200", Attribute::CpuWeight(200)),
            ("cpu.share 30%", Attribute::CpuShare(300_000)),
            ("cpu.share 0%", Attribute::CpuShare(0)),
            ("cpu.limit 0.5%", Attribute::CpuLimit(5_000)),
            ("cpu.limit max", Attribute::CpuLimit(0)),
            ("cpu.priority 0", Attribute::CpuPriority(0)),
            ("memory.max 1G", Attribute::MemoryMax(1 << 30)),
            ("network.max 10Mbit", Attribute::NetworkMax(10_000_000)),
            ("network.weight 7", Attribute::NetworkWeight(7)),
            ("descendants.max 12", Attribute::DescendantsMax(12)),
        ] {
            assert_eq!(read(line.as_bytes()), Ok(vec![Order::Set(expected)]), "{line}");
        }
    }

    #[test]
    fn one_order_stands_on_a_line() {
        let orders = read(b"\n  cpu.weight\t200 \r\n\nbind 812\n");
        assert_eq!(orders, Ok(vec![Order::Set(Attribute::CpuWeight(200)), Order::Bind(812)]));
        assert_eq!(read(b""), Ok(Vec::new()));
    }

    #[test]
    fn a_user_binds_one_process_at_once() {
        let short = |text: &[u8]| is_short(&read(text).expect("orders"));
        assert!(short(b"") && short(b"bind 812\ncpu.weight 3\ncpu.weight 4\n"));
        assert!(!short(b"bind 812\ncpu.weight 3\nbind 812\n"));
    }

    #[test]
    fn one_wrong_line_is_a_wrong_order() {
        for (text, said) in [
            (&b"cpu.weight 200\ncpu.wieght 3"[..], "did you mean cpu.weight?"),
            (b"cpu.weight", "expected a name and a value"),
            (b"cpu.weight 1 2", "expected a name and a value"),
            (b"cpu.weight 0", "`cpu.weight`: 0 is out of range; expected "),
            (b"cpu.share 160%", "more than the machine; expected "),
            (b"cpu.limit 5", "; expected "),
            (b"cpu.share 5\"\n[container.x]", "is no value"),
            (b"cpu.limit 1%\"", "is no value"),
            (b"bind 0", "a process id"),
            (b"bind -1", "a process id"),
            (b"bind self", "a process id"),
            (b"weight 3", "nothing is called"),
            (b"\xff 3", "no text"),
        ] {
            let wrong = read(text).expect_err("refused");
            assert!(wrong.contains(said), "{wrong}");
        }
    }
}
