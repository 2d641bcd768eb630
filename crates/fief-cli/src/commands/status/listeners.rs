// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The listeners of `fief status`, a line for each server.

use fief_control::{Classes, ListenerStatus};
use fief_policy::Serve;

use crate::output::{Align, Table};
use crate::quantity;

/// By what its classes are told apart, as it is found, and what of that is missing.
fn classes(ListenerStatus { serve, classes, servers, .. }: &ListenerStatus) -> String {
    let Classes { count, with_socket, shim, queue } = *classes;
    let asked = match serve {
        Serve::CopiesPerClass => Some("copies"),
        Serve::Shim if count > 1 && queue.is_none() => Some("shim"),
        Serve::Shim | Serve::Shared => None,
    };
    let by = if *serve == Serve::CopiesPerClass { "copies" } else { "the shim" };
    let missing = match asked {
        Some(asked) if servers.is_empty() => Some(format!("asked: {asked}")),
        Some(asked) if with_socket == 0 && shim => Some(format!("asked: {asked}, loaded, no sockets")),
        Some(asked) if with_socket == 0 => Some(format!("asked: {asked}, not there")),
        Some(asked) if with_socket < count => Some(format!("asked: {asked}, for {with_socket} of {count}")),
        _ if queue == Some(false) => Some("asked: queue, not there".to_owned()),
        _ => None,
    };
    let sockets = (with_socket > 0).then(|| format!("by {by}"));
    let there: Vec<_> = sockets.into_iter().chain((queue == Some(true)).then(|| "by the queue".to_owned())).collect();
    match (missing, count) {
        (Some(missing), _) => missing,
        (None, 0 | 1) if there.is_empty() => "one".to_owned(),
        (None, _) if there.is_empty() => format!("{count} at one socket"),
        (None, _) => format!("{count} {}", there.join(" and ")),
    }
}

pub fn table(listeners: &[ListenerStatus]) -> Table {
    let mut table = Table::new(&[
        ("LISTENER", Align::Left),
        ("ADDRESS", Align::Left),
        ("CLASSES", Align::Left),
        ("SERVER", Align::Left),
        ("PID", Align::Right),
        ("UNIT", Align::Left),
        ("LISTENS ON", Align::Left),
        ("MANAGED", Align::Left),
    ]);
    for listener in listeners {
        let (name, address) = (listener.name.clone(), listener.address.to_string());
        let classes = classes(listener);
        // workers have a socket each
        let mut servers: Vec<_> = listener.servers.iter().collect();
        servers.dedup_by(|one, other| (one.pid, one.address, one.managed) == (other.pid, other.address, other.managed));
        for server in &servers {
            table.push([
                name.clone(),
                address.clone(),
                classes.clone(),
                server.program.clone(),
                quantity::or_dash(server.pid.map(|pid| pid.to_string())),
                quantity::or_dash(server.unit.clone()),
                match &server.class {
                    Some(class) => format!("{} for {class}", server.address),
                    None => server.address.to_string(),
                },
                if server.managed { "yes" } else { "no" }.into(),
            ]);
        }
        if servers.is_empty() {
            table.push([name, address, classes, "nobody".into(), "-".into(), "-".into(), "-".into(), "-".into()]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use fief_control::ServerStatus;
    use fief_policy::Mode;

    #[test]
    fn what_is_there_is_told_and_not_what_the_policy_asks_for() {
        let told = |serve, count, with_socket, shim, queue| {
            let address = "0.0.0.0:80".parse().expect("an address");
            let server =
                ServerStatus { address, class: None, pid: None, program: "nginx".into(), unit: None, managed: true };
            classes(&ListenerStatus {
                name: "web".into(),
                address,
                serve,
                mode: Mode::Enforce,
                classes: Classes { count, with_socket, shim, queue },
                servers: vec![server],
            })
        };
        assert_eq!(told(Serve::Shim, 2, 2, true, None), "2 by the shim");
        assert_eq!(told(Serve::Shim, 2, 0, false, None), "asked: shim, not there");
        assert_eq!(told(Serve::Shim, 2, 0, true, None), "asked: shim, loaded, no sockets");
        assert_eq!(told(Serve::Shim, 3, 2, true, None), "asked: shim, for 2 of 3");
        assert_eq!(told(Serve::Shim, 1, 0, true, None), "one");
        assert_eq!(told(Serve::Shared, 2, 0, false, None), "2 at one socket");
        assert_eq!(told(Serve::CopiesPerClass, 2, 2, false, None), "2 by copies");
        assert_eq!(told(Serve::CopiesPerClass, 2, 1, false, None), "asked: copies, for 1 of 2");
        assert_eq!(told(Serve::Shim, 2, 0, false, Some(true)), "2 by the queue");
        assert_eq!(told(Serve::Shim, 2, 2, true, Some(true)), "2 by the shim and by the queue");
        assert_eq!(told(Serve::Shared, 2, 0, false, Some(false)), "asked: queue, not there");
    }
}
