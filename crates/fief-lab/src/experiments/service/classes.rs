// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether each request was charged to the class of its client. Pure.
//!
//! A request is its connection's class's, so connections are what is held against each other: those over which the clients of a
//! class were answered, and those that its container was given. One that failed may have been given too.

/// Clients of a class, and its container.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Class {
    /// Requests that were answered.
    pub requests: u64,
    /// Connections over which they were.
    pub connections: u64,
    pub lost: u64,
    /// Connections that the container was given.
    pub accepts: u64,
    /// Time of threads that the container was charged.
    pub thread_ns: u64,
}

impl Class {
    /// Requests of other connections than those that the container was given, and those of others that it was given.
    fn wrong(&self) -> f64 {
        if self.thread_ns == 0 {
            return self.requests as f64;
        }
        let missing = self.connections.saturating_sub(self.accepts);
        let foreign = self.accepts.saturating_sub(self.connections + self.lost);
        (missing + foreign) as f64 * self.requests as f64 / self.connections.max(1) as f64
    }
}

/// The part of all requests that were not charged to their class.
pub fn unclassified(classes: &[Class]) -> f64 {
    let requests: u64 = classes.iter().map(|class| class.requests).sum();
    classes.iter().map(Class::wrong).sum::<f64>() / requests as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Class = Class { requests: 1000, connections: 100, lost: 0, accepts: 100, thread_ns: 1 };

    #[test]
    fn a_connection_that_the_class_was_not_given_counts_with_its_requests() {
        assert_eq!(unclassified(&[ALL, ALL]), 0.0);
        assert_eq!(unclassified(&[ALL, Class { accepts: 99, ..ALL }]), 0.005);
        assert_eq!(unclassified(&[ALL, Class { accepts: 101, ..ALL }]), 0.005);
    }

    #[test]
    fn a_request_that_was_lost_may_have_been_given_to_its_class() {
        assert_eq!(unclassified(&[Class { lost: 3, accepts: 103, ..ALL }]), 0.0);
        assert_eq!(unclassified(&[Class { lost: 3, accepts: 104, ..ALL }]), 0.01);
    }

    #[test]
    fn a_class_that_was_charged_no_time_was_charged_for_nothing() {
        assert_eq!(unclassified(&[ALL, Class { thread_ns: 0, ..ALL }]), 0.5);
    }
}
