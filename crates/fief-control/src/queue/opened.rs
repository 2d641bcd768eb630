// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opened: what became of requests in queues that the next policy does not name, as far as their servers did not take them, and how an
//! operator is told of it.

use fief_bpf::Result;

/// What became of the requests of one queue.
#[derive(Debug)]
pub(super) struct Emptied {
    /// So many were in it before.
    pub(super) there: u32,
    /// Those that the server did not take once the queue was opened.
    pub(super) waited: Result<u32>,
    /// Of these, those that could not be refused. `None`: none was to be.
    pub(super) left: Option<Result<u32>>,
}

/// What became of the requests of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Opened {
    /// Their clients were told so.
    refused: u32,
    /// Nothing can be sent where they came in.
    left: u32,
    /// The programs are of another version, which cannot refuse them.
    unrefused: u32,
    /// The most that can be in queues that could not be told.
    untold: u32,
}

impl Opened {
    /// A queue that could not be told takes nothing from what is known of the others. The first error stands beside all that.
    pub(super) fn of(queues: impl IntoIterator<Item = Emptied>, refuses: bool) -> (Self, Result<()>) {
        let mut all = Self::default();
        let mut done = Ok(());
        for Emptied { there, waited, left } in queues {
            match (&waited, &left) {
                (Ok(waited), Some(Ok(left))) => {
                    all.refused += waited.saturating_sub(*left);
                    all.left += left;
                }
                (Ok(waited), None) if refuses => all.left += waited,
                (Ok(waited), None) => all.unrefused += waited,
                (Ok(waited), Some(Err(_))) => all.untold += waited,
                (Err(_), _) => all.untold += there,
            }
            done = done.and(waited.map(drop)).and(left.transpose().map(drop));
        }
        (all, done)
    }

    /// For who ended the queues.
    pub(crate) fn notes(self) -> Vec<String> {
        let Self { refused, left, unrefused, untold } = self;
        sentences(&[
            (refused, REFUSED),
            // their clients hear of it by their own timeouts
            (left, "are lost: the interface where they came in is down or gone, or not guarded"),
            (unrefused, "are lost: their server did not take them, and programs of another version cannot refuse them"),
            (untold, "may be lost: their queue could not be told to let go of them"),
        ])
    }

    /// For who was to end them, and failed: what went before that stays done.
    pub(crate) fn in_vain(self) -> Vec<String> {
        let Self { refused, left, unrefused, untold } = self;
        sentences(&[(refused, REFUSED), (left + unrefused + untold, "may still be there, and be refused later")])
    }
}

const REFUSED: &str = "were refused: their server did not take them";

fn sentences(told: &[(u32, &str)]) -> Vec<String> {
    let happened = told.iter().filter(|(count, _)| *count > 0);
    happened.map(|(count, what)| format!("{count} requests that waited {what}")).collect()
}

#[cfg(test)]
mod tests {
    use fief_bpf::{Error, ErrorKind};

    use super::*;

    fn failed<T>(what: &str) -> Result<T> {
        Err(Error::new(ErrorKind::Other, what))
    }

    #[test]
    fn a_queue_that_fails_midway_hides_nothing_of_the_others() {
        let queues = [
            Emptied { there: 9, waited: Ok(5), left: Some(Ok(0)) },
            Emptied { there: 3, waited: failed("the first"), left: Some(failed("the second")) },
            Emptied { there: 8, waited: Ok(7), left: Some(failed("the third")) },
            Emptied { there: 4, waited: Ok(4), left: Some(Ok(1)) },
            Emptied { there: 6, waited: Ok(0), left: None },
        ];
        let (opened, done) = Opened::of(queues, true);
        assert_eq!(opened, Opened { refused: 8, left: 1, unrefused: 0, untold: 10 });
        assert_eq!(done.unwrap_err().what(), "the first");
        assert_eq!(
            opened.in_vain(),
            [
                "8 requests that waited were refused: their server did not take them",
                "11 requests that waited may still be there, and be refused later",
            ]
        );
    }

    #[test]
    fn programs_of_another_version_let_go_and_refuse_nobody() {
        let (opened, done) = Opened::of([Emptied { there: 9, waited: Ok(5), left: None }], false);
        done.unwrap();
        assert_eq!(opened, Opened { unrefused: 5, ..Opened::default() });
        let notes = opened.notes();
        assert!(notes.len() == 1 && notes[0].starts_with("5 requests that waited are lost: "), "{notes:?}");
    }

    #[test]
    fn where_nobody_is_left_nothing_is_said() {
        let (opened, done) = Opened::of([Emptied { there: 6, waited: Ok(0), left: None }], true);
        assert_eq!((opened, done.is_ok()), (Opened::default(), true));
        assert_eq!([opened.notes(), opened.in_vain()], [Vec::<String>::new(), Vec::new()]);
    }
}
