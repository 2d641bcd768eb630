// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why a connection request or a request was let through or refused: one closed list for the kernel side, the command
//! line and applications.

use std::fmt;

use crate::abi;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:ident, $word:literal, $means:literal;)*) => {
        /// Why a verdict fell.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[non_exhaustive]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All of them, in the order of the kernel side's numbers.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The kernel side's number, `FIEF_SYN_TAKEN` and so on.
            pub fn number(self) -> u32 {
                match self { $(Self::$name => abi::$number,)* }
            }

            /// The word for it, as in `syn-rate`.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $word,)* }
            }

            /// What it means, for people.
            pub fn means(self) -> &'static str {
                match self { $(Self::$name => $means,)* }
            }
        }
    };
}

reasons! {
    /// `syn-taken`
    SynTaken = FIEF_SYN_TAKEN, "syn-taken", "connection requests that were answered";
    /// `syn-rate`
    SynRate = FIEF_SYN_RATE, "syn-rate", "connection requests above the rate of their rule or source";
    /// `syn-unproven`
    SynUnproven = FIEF_SYN_UNPROVEN, "syn-unproven",
        "connection requests above what is answered to sources that never returned a cookie";
    /// `syn-isolated`
    SynIsolated = FIEF_SYN_ISOLATED, "syn-isolated", "connection requests from a source or prefix that sends too many";
    /// `syn-penalty`
    SynPenalty = FIEF_SYN_PENALTY, "syn-penalty", "connection requests of sources whose request was refused before";
    /// `syn-queue`
    SynQueue = FIEF_SYN_QUEUE, "syn-queue", "connection requests while the listen queue of the class was full";
    /// `ack-bad`
    AckBad = FIEF_ACK_BAD, "ack-bad", "segments without a connection and without a valid cookie";
    /// `ack-limit`
    AckLimit = FIEF_ACK_LIMIT, "ack-limit", "segments of that kind beyond what is looked at";
    /// `shape`
    Shape = FIEF_SHAPE, "shape", "packets whose options, headers, fragments or lengths cannot be read";
    /// `request-rule`
    RequestRule = FIEF_REQUEST_RULE, "request-rule", "requests that a rule let pass";
    /// `request-client`
    RequestClient = FIEF_REQUEST_CLIENT, "request-client", "requests that no rule matched: the class of their client";
    /// `request-refused`
    RequestRefused = FIEF_REQUEST_REFUSED, "request-refused", "requests that a rule refuses";
    /// `request-rate`
    RequestRate = FIEF_REQUEST_RATE, "request-rate", "requests above the rate of their rule";
    /// `request-cpu`
    RequestCpu = FIEF_REQUEST_CPU, "request-cpu", "requests above the CPU time of their rule";
    /// `request-untracked`: no longer counted; such requests are `passed-other` or `refused-other`
    RequestUntracked = FIEF_REQUEST_UNTRACKED, "request-untracked",
        "no longer counted: later requests whose begin is not known are passed-other or refused-other";
    /// `lane-full`
    LaneFull = FIEF_LANE_FULL, "lane-full", "packets discarded because the receive thread of their class lags behind";
    /// `answer-unrouted`
    AnswerUnrouted = FIEF_ANSWER_UNROUTED, "answer-unrouted",
        "clients that no route of the front door's leads to: SYNs are left to the kernel, the rest is dropped";
    /// `syn-unguarded`
    SynUnguarded = FIEF_SYN_UNGUARDED, "syn-unguarded",
        "new connections that came in where nothing guards: at an interface of later, or through another port";
    /// `request-replaced`
    RequestReplaced = FIEF_REQUEST_REPLACED, "request-replaced",
        "packets with other bytes in the place of a later request that was ruled: dropped";
    /// `passed-malformed`
    PassedMalformed = FIEF_PASSED_MALFORMED, "passed-malformed",
        "heads that break their form or end within it: passed into the class of their client";
    /// `passed-too-long`
    PassedTooLong = FIEF_PASSED_TOO_LONG, "passed-too-long",
        "heads longer than are looked at: passed into the class of their client";
    /// `passed-upgrade`
    PassedUpgrade = FIEF_PASSED_UPGRADE, "passed-upgrade",
        "bytes behind a change of protocol that the server has not confirmed: passed into the class of their client";
    /// `passed-http2`
    PassedHttp2 = FIEF_PASSED_HTTP2, "passed-http2",
        "HTTP/2 without TLS: passed into the class of their client";
    /// `passed-proxy`
    PassedProxy = FIEF_PASSED_PROXY, "passed-proxy",
        "PROXY heads of peers that they are not taken from: passed into the class of their client";
    /// `passed-no-room`
    PassedNoRoom = FIEF_PASSED_NO_ROOM, "passed-no-room",
        "unfinished heads beyond the room for them: passed into the class of their client";
    /// `passed-other`
    PassedOther = FIEF_PASSED_OTHER, "passed-other",
        "bytes that are neither HTTP nor TLS, or whose request cannot be found: passed into the class of their client";
    /// `refused-malformed`
    RefusedMalformed = FIEF_REFUSED_MALFORMED, "refused-malformed",
        "heads that break their form or end within it: reset";
    /// `refused-too-long`
    RefusedTooLong = FIEF_REFUSED_TOO_LONG, "refused-too-long",
        "heads longer than are looked at: reset";
    /// `refused-upgrade`
    RefusedUpgrade = FIEF_REFUSED_UPGRADE, "refused-upgrade",
        "bytes behind a change of protocol that the server has not confirmed: reset";
    /// `refused-http2`
    RefusedHttp2 = FIEF_REFUSED_HTTP2, "refused-http2",
        "HTTP/2 without TLS: reset";
    /// `refused-proxy`
    RefusedProxy = FIEF_REFUSED_PROXY, "refused-proxy",
        "PROXY heads of peers that they are not taken from: reset";
    /// `refused-no-room`
    RefusedNoRoom = FIEF_REFUSED_NO_ROOM, "refused-no-room",
        "unfinished heads beyond the room for them: reset";
    /// `refused-other`
    RefusedOther = FIEF_REFUSED_OTHER, "refused-other",
        "bytes that are neither HTTP nor TLS, or whose request cannot be found: reset";
    /// `refused-queue-full`
    RefusedQueueFull = FIEF_REFUSED_QUEUE_FULL, "refused-queue-full",
        "requests that found the queue full";
    /// `refused-queue-wait`
    RefusedQueueWait = FIEF_REFUSED_QUEUE_WAIT, "refused-queue-wait",
        "requests that waited in the queue for too long, or would have";
    /// `banned`
    Banned = FIEF_BANNED, "banned", "packets of clients that `fief ban` shuts out";
    /// `syn-absent`
    SynAbsent = FIEF_SYN_ABSENT, "syn-absent",
        "connection requests while nobody listened: dropped, so that their clients send again";
    /// `refused-queue-displaced`
    RefusedQueueDisplaced = FIEF_REFUSED_QUEUE_DISPLACED, "refused-queue-displaced",
        "requests that waited in the queue and gave way to another, of a better class or of a client that has less there";
    /// `queue-waits`
    QueueWaits = FIEF_QUEUE_WAITS, "queue-waits", "requests that began to wait in the queue: told, not counted";
    /// `queue-released`
    QueueReleased = FIEF_QUEUE_RELEASED, "queue-released",
        "requests that waited in the queue and went to the server: told, not counted";
}

impl Reason {
    /// The reason with the kernel side's number; `None`: a newer kernel side knows more.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.number() == number)
    }

    /// Whether what it stands for is let through.
    pub fn lets_pass(self) -> bool {
        matches!(self, Self::SynTaken | Self::RequestRule | Self::RequestClient | Self::RequestUntracked)
            || matches!(self, Self::QueueWaits | Self::QueueReleased)
            || (Self::PassedMalformed..=Self::PassedOther).contains(&self)
    }

    /// Whether it is about a request; else about packets before the first one.
    pub fn is_request(self) -> bool {
        (Self::RequestRule..=Self::RequestUntracked).contains(&self)
            || (Self::RequestReplaced..=Self::RefusedQueueWait).contains(&self)
            || (Self::RefusedQueueDisplaced..=Self::QueueReleased).contains(&self)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_of_the_kernel_side_has_a_word() {
        for number in abi::FIEF_REASON_NONE + 1..abi::FIEF_REASONS {
            let reason = Reason::from_number(number).unwrap_or_else(|| panic!("reason {number} has no word"));
            assert_eq!(reason.number(), number);
        }
        assert_eq!(Reason::ALL.len() as u32, abi::FIEF_REASONS - 1);
        assert_eq!(Reason::from_number(abi::FIEF_REASON_NONE), None);
    }

    #[test]
    fn a_word_says_whether_it_is_about_a_request() {
        for reason in Reason::ALL {
            let is_request =
                ["request-", "passed-", "refused-", "queue-"].iter().any(|start| reason.as_str().starts_with(start));
            assert_eq!(reason.is_request(), is_request, "{reason}");
        }
    }
}
