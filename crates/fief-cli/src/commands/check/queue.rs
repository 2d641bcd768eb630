// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a policy says about requests that wait in front of a server.

use fief_policy::{ClassQueue, Listener, Queue, Until};

use super::listener::span;
use crate::output::printable;

/// A line for each thing that holds for all, and one for each class that something else holds for.
pub fn lines(listener: &Listener, queue: &Queue) -> Vec<String> {
    let mut lines = all(queue).to_vec();
    lines.extend(until(queue.until).map(str::to_owned));
    lines.extend(listener.class_paths().into_iter().filter_map(|path| class(listener, queue, path)));
    lines
}

/// How long the server has a request, unless it is as by default.
fn until(until: Until) -> Option<&'static str> {
    match until {
        Until::FirstByte => None,
        Until::Response => Some("the server has a request until its whole answer has left, as far as that shows"),
        Until::Close => {
            Some("the server has a request until its connection ends, and all others of that connection at once")
        }
    }
}

/// What waits in front of the server, and in which order it goes.
fn all(queue: &Queue) -> [String; 4] {
    let places = match queue.in_service {
        Some(1) => "one request at once".to_owned(),
        Some(count) => format!("{count} requests at once"),
        None => "as many requests at once as it answers most with (found out while it runs, by how many are answered and how soon)".to_owned(),
    };
    let Queue { length, wait_ns, fair, turns, .. } = queue;
    let short = match queue.adapts && !fair {
        true => format!(
            ", {} while the line of their class stands, after it grew for a second",
            span(queue.short_wait_ns())
        ),
        false => String::new(),
    };
    [
        format!("the server gets {places}, up to {length} others wait up to {} for it{short}", span(*wait_ns)),
        "of those that wait the highest cpu.priority is next, among equals by share or weight: of the charged CPU time where the \
         server is managed, else of the number of requests"
            .to_owned(),
        match fair {
            true => "within a class its clients take turns, by address".to_owned(),
            false => "within a class the order is that of arrival".to_owned(),
        },
        match turns {
            true => {
                "requests of HTTP/1 are ordered; of TLS and other protocols each turn, until the server's first byte"
                    .to_owned()
            }
            false => "requests of HTTP/1 are ordered; of TLS and other protocols the connections alone".to_owned(),
        },
    ]
}

/// What its rules say of a class that waits.
fn class(listener: &Listener, queue: &Queue, path: &str) -> Option<String> {
    let ClassQueue { length, wait_ns, reserve } = listener.class_queue(path);
    let most = length.map(|length| format!("up to {length} wait"));
    let longest = wait_ns.map(|ns| format!("none waits longer than {}", span(ns)));
    let alone = reserve.map(|places| format!("{places} of the {} places are for no other class", queue.length));
    let says: Vec<_> = [most, longest, alone].into_iter().flatten().collect();
    (!says.is_empty()).then(|| format!("of {}: {}", printable(path), says.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_class_waits_is_told_where_it_differs() {
        let text = "version = 1\n[container.a]\n[container.b]\n[listener.web]\naddress = \"0.0.0.0:80\"\nqueue = { length = 50, until = \"response\" }\n\
            [[listener.web.client]]\nfrom = [\"10.1.0.0/16\"]\ncontainer = \"a\"\nqueue = { length = 30, reserve = 20 }\n\
            [[listener.web.client]]\nfrom = [\"any\"]\ncontainer = \"b\"\n\
            [[listener.web.request]]\npath = \"/b\"\ncontainer = \"b\"\nqueue.wait = \"2s\"\n";
        let policy = fief_policy::parse(text, "a.toml").unwrap_or_else(|errors| panic!("{errors}"));
        let listener = &policy.listeners[0];
        let told = lines(listener, &listener.queue.expect("a queue"));
        let own = [
            "the server has a request until its whole answer has left, as far as that shows",
            "of a: up to 30 wait; 20 of the 50 places are for no other class",
            "of b: none waits longer than 2 s",
        ];
        assert_eq!(told[4..], own);
        let order = "of those that wait the highest cpu.priority is next, among equals by share or weight: of the charged CPU time where \
                     the server is managed, else of the number of requests";
        assert_eq!(told[1], order);
    }
}
