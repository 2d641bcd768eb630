// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The queues in which a container is a class: its requests that wait, that servers have, and that were refused.

use fief_control::{QueueClassView, QueueView};

use crate::commands::explain::queues::{self, Queued};
use crate::output::{Align, Table, printable};
use crate::quantity::{count, duration, or_dash};

/// A queue, and the container's class in it.
#[derive(Clone, Copy, Debug)]
pub struct Of<'a> {
    queue: &'a QueueView,
    class: &'a QueueClassView,
}

/// Those of one container, by listener.
pub fn of<'a>(queues: &'a [QueueView], path: &str) -> Vec<Of<'a>> {
    let its = queues::classes(queues).filter(|(_, class)| class.container == path);
    its.map(|(queue, class)| Of { queue, class }).collect()
}

pub fn objects<'a>(own: &[Of<'a>]) -> Vec<Queued<'a>> {
    own.iter().map(|of| Queued::of(of.queue, of.class)).collect()
}

/// A line for each, and below them what all classes of the queue are together.
pub fn page(own: &[Of]) -> String {
    let mut table = Table::new(&[
        ("QUEUE OF", Align::Left),
        ("WAITING", Align::Right),
        ("IN SERVICE", Align::Right),
        ("PLACES", Align::Right),
        ("P50", Align::Right),
        ("P99", Align::Right),
        ("REFUSED: FULL", Align::Right),
        ("TOO LATE", Align::Right),
        ("GONE", Align::Right),
    ]);
    for Of { queue, class } in own {
        table.push([
            queue.listener.clone(),
            class.waiting.to_string(),
            class.in_service.to_string(),
            format!("{}{}", queue.places, if queue.finds { " (auto)" } else { "" }),
            or_dash(class.wait_p50_ns.map(duration)),
            or_dash(class.wait_p99_ns.map(duration)),
            count(class.refused_full),
            count(class.refused_wait),
            count(class.gone),
        ]);
    }
    let together = own.iter().flat_map(|of| queues::together(of.queue).lines().map(printable).collect::<Vec<_>>());
    table.to_string() + &together.map(|line| line + "\n").collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queued::sample::{class, queue};

    fn queues() -> [QueueView; 2] {
        let web = queue("web", 4096, vec![class("shop/gold", 4), class("shop", 0)]);
        [queue("api", 2, vec![class("shop", 1)]), QueueView { finds: true, ..web }]
    }

    #[test]
    fn a_container_has_a_line_for_each_queue_in_which_it_is_a_class() {
        let queues = queues();
        let page = |path| page(&of(&queues, path));
        assert_eq!(
            page("shop"),
            "\
QUEUE OF  WAITING  IN SERVICE       PLACES      P50      P99  REFUSED: FULL  TOO LATE  GONE
api             1           1            2  8.19 us  8.19 us              5         6     7
web             1           1  4096 (auto)        -        -              5         6     7
api: the server has 1 of 2 requests at once; 1 of 100 wait
web: the server has 2 of 4096 requests at once, the most there are, until fewer are found to do; 2 of 100 wait
"
        );
        assert_eq!(page("shop/gold").lines().count(), 3);
    }

    #[test]
    fn its_objects_are_those_of_explain() {
        let queues = queues();
        let objects = serde_json::to_value(objects(&of(&queues, "shop"))).expect("texts and numbers");
        assert_eq!((&objects[0]["listener"], &objects[1]["listener"]), (&"api".into(), &"web".into()));
        assert_eq!((&objects[1]["class_in_service"], &objects[1]["in_service"]), (&1.into(), &2.into()));
        assert_eq!(objects[1]["wait_p99_ns"], serde_json::Value::Null);
        assert!(of(&queues, "shop/silver").is_empty());
    }
}
