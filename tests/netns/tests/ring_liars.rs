// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a thread writes into its ring can misplace its own time among its own containers, and nothing else.

use std::time::Duration;

use fief::Container;
use fief_bpf::abi;
use fief_testkit::wait_until;
use fief_tests_netns::{OwnPage, SOON, all_end, become_user, fork, in_unit, in_unit_with, now_ns, spin};
use fief_tests_netns::{is_about, ms, own_clock, used};
use nix::errno::Errno;

fn open() -> OwnPage {
    let page = OwnPage::new();
    page.open().unwrap();
    page
}

/// Numbers that are no secret to anybody (Marsaglia's xorshift).
fn noise(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn noise_is_charged_to_the_threads_own_containers_and_no_more_than_it_ran() {
    in_unit("noise_is_charged_to_the_threads_own_containers_and_no_more_than_it_ran", || {
        let (home, own, foreign) =
            (Container::create().unwrap(), Container::create().unwrap(), Container::create().unwrap());
        home.bind_thread().unwrap();
        let page = open();
        page.put(&own, 5).unwrap();
        let (begin, before) = (own_clock(), used(&home) + used(&own));
        let mut state = 88_172_645_463_325_252;
        for round in 0..20_000 {
            for _ in 0..noise(&mut state) % 40 {
                page.write_raw(noise(&mut state));
            }
            match round % 100 {
                // a head that went back, or far ahead
                0 => page.set_head(noise(&mut state) as u32),
                50 => page.set_head(page.head().wrapping_sub(3)),
                // the errors of the flush are its own
                _ => drop(page.flush()),
            }
            // what it is bound to by the noise may be its home, the unit
            home.bind_thread().unwrap();
        }
        let ran = own_clock() - begin;
        let charged = used(&home) + used(&own) - before;
        assert!(charged <= ran + ran / 50 + ms(2), "{charged:?} of {ran:?}");
        assert_eq!(used(&foreign), Duration::ZERO);
        page.close().unwrap();
        fief::unbind(&home).unwrap();
        drop((home, own, foreign));
        all_end();
    });
}

#[test]
fn nobody_but_the_operator_has_a_ring() {
    in_unit("nobody_but_the_operator_has_a_ring", || {
        let mine = open();
        mine.close().unwrap();
        become_user(4242);
        assert_eq!(OwnPage::new().open(), Err(Errno::EPERM));
        assert_eq!(fief::Ring::open().unwrap_err().kind(), fief::ErrorKind::Denied);
    });
}

#[test]
fn a_place_that_names_nothing_leaves_the_thread_where_it_is() {
    in_unit_with(
        "a_place_that_names_nothing_leaves_the_thread_where_it_is",
        || {
            let (a, b) = (Container::create().unwrap(), Container::create().unwrap());
            let page = open();
            page.put(&a, 1).unwrap();
            page.put(&b, 2).unwrap();
            page.clear(2).unwrap();
            page.write(1, now_ns());
            spin(ms(20));
            for place in [2, 3, 63] {
                page.write(place, now_ns());
                spin(ms(10));
            }
            page.flush().unwrap();
            assert_eq!(used(&b), Duration::ZERO);
            is_about(used(&a), ms(50), ms(8));
            assert_eq!(page.put(&b, 0), Err(Errno::EINVAL));
            assert_eq!(page.put(&b, abi::FIEF_RING_PLACES), Err(Errno::EINVAL));
            assert_eq!(page.clear(64), Err(Errno::EINVAL));
            page.close().unwrap();
            assert_eq!(page.put(&b, 1), Err(Errno::ENXIO));
            assert_eq!(page.clear(1), Err(Errno::ENXIO));
            assert_eq!(page.flush(), Err(Errno::ENXIO));
            assert_eq!(page.close(), Err(Errno::ENXIO));
            fief::unbind(&a).unwrap();
            drop((a, b));
            all_end();
        },
        |installation| {
            let failures = installation.fief().failures().unwrap();
            let unread = failures.iter().find(|(name, _)| *name == "ring_unread").unwrap().1;
            assert_eq!(unread, 1, "each ring is told of once: {failures:?}");
        },
    );
}

#[test]
fn moments_in_the_future_and_in_the_past_are_clamped() {
    in_unit("moments_in_the_future_and_in_the_past_are_clamped", || {
        let (a, b) = (Container::create().unwrap(), Container::create().unwrap());
        let page = open();
        page.put(&a, 1).unwrap();
        page.put(&b, 2).unwrap();
        page.write(1, now_ns());
        page.flush().unwrap();
        let (begin, before) = (own_clock(), used(&a) + used(&b));
        spin(ms(20));
        // since the boot: but what was charged is charged, so at most since the last charge
        page.write(2, 1);
        // in an hour: now
        page.write(1, now_ns() + 3_600_000_000_000);
        spin(ms(20));
        page.write(2, now_ns() - 3_600_000_000_000);
        page.flush().unwrap();
        let ran = own_clock() - begin;
        is_about(used(&a) + used(&b) - before, ran, ms(3));
        page.close().unwrap();
        fief::unbind(&a).unwrap();
        drop((a, b));
        all_end();
    });
}

#[test]
fn a_thread_with_a_clock_of_its_own_is_divided_all_the_same() {
    in_unit("a_thread_with_a_clock_of_its_own_is_divided_all_the_same", || {
        let (a, b) = (Container::create().unwrap(), Container::create().unwrap());
        let page = OwnPage::new();
        let ahead = 1_000_000_000_000;
        let now = || now_ns() + ahead;
        page.open_at(page.address() as u64, now()).unwrap();
        page.put(&a, 1).unwrap();
        page.put(&b, 2).unwrap();
        let measured: Vec<_> = (0..5)
            .map(|_| {
                let before = [used(&a), used(&b)];
                for _ in 0..20 {
                    page.write(1, now());
                    spin(ms(1));
                    page.write(2, now());
                    spin(ms(3));
                }
                page.flush().unwrap();
                [used(&a) - before[0], used(&b) - before[1]]
            })
            .collect();
        // an error would be in each of them; what a hypervisor takes is found out late, and may be taken from the other one
        assert!(
            measured.iter().any(|[a, b]| a.abs_diff(ms(20)) <= ms(4) && b.abs_diff(ms(60)) <= ms(8)),
            "{measured:?}"
        );
        page.close().unwrap();
        fief::unbind(&a).unwrap();
        drop((a, b));
        all_end();
    });
}

#[test]
fn a_page_that_is_gone_counts_as_empty_and_is_told() {
    in_unit_with(
        "a_page_that_is_gone_counts_as_empty_and_is_told",
        || {
            let (a, b) = (Container::create().unwrap(), Container::create().unwrap());
            let mut page = open();
            page.put(&a, 1).unwrap();
            page.write(1, now_ns());
            spin(ms(10));
            page.flush().unwrap();
            page.unmap();
            spin(ms(20));
            assert_eq!(page.flush(), Err(Errno::EFAULT));
            // calls go on
            b.bind_thread().unwrap();
            spin(ms(10));
            is_about(used(&a), ms(30), ms(6));
            is_about(used(&b), ms(10), ms(5));
            page.close().unwrap();
            let other = open();
            other.put(&b, 1).unwrap();
            other.flush().unwrap();
            other.close().unwrap();
            // where there never was one, or not at the begin of a page
            let page = OwnPage::new();
            assert_eq!(page.open_at(1 << 46, now_ns()), Err(Errno::EFAULT));
            assert_eq!(page.open_at(0xffff_ffff_8000_0000, now_ns()), Err(Errno::EFAULT));
            assert_eq!(page.open_at(page.address() as u64 + 8, now_ns()), Err(Errno::EINVAL));
            fief::unbind(&a).unwrap();
            drop((a, b));
            all_end();
        },
        |installation| {
            let failures = installation.fief().failures().unwrap();
            assert_eq!(failures.iter().find(|(name, _)| *name == "ring_unread").unwrap().1, 1, "{failures:?}");
        },
    );
}

#[test]
fn a_page_that_changes_while_it_is_read_misplaces_nobody_elses_time() {
    in_unit("a_page_that_changes_while_it_is_read_misplaces_nobody_elses_time", || {
        let (own, other, foreign) =
            (Container::create().unwrap(), Container::create().unwrap(), Container::create().unwrap());
        let page = open();
        page.put(&own, 1).unwrap();
        page.put(&other, 2).unwrap();
        page.write(1, now_ns());
        page.flush().unwrap();
        let address = page.address();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                foreign.bind_thread().unwrap();
                let mut state = 0x9e37_79b9_7f4a_7c15;
                let at = address as *mut u64;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let word = noise(&mut state) as usize % (size_of::<abi::fief_ring_page>() / 8);
                    // SAFETY: the page stays mapped until this thread has ended.
                    unsafe { at.add(word).write_volatile(noise(&mut state)) };
                }
            });
            let (begin, before) = (own_clock(), used(&own) + used(&other));
            for turn in 0..2000 {
                page.write(1 + turn % 2, now_ns());
                spin(Duration::from_micros(50));
                let _told = page.flush();
                let _swapped = page.clear(2).and_then(|()| page.put(&other, 2));
            }
            let ran = own_clock() - begin;
            let charged = used(&own) + used(&other) - before;
            assert!(charged <= ran + ran / 20 + ms(3), "{charged:?} of {ran:?}");
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        page.close().unwrap();
        fief::unbind(&own).unwrap();
        drop((own, other, foreign));
        all_end();
    });
}

#[test]
fn rings_are_given_back_however_threads_end() {
    in_unit("rings_are_given_back_however_threads_end", || {
        // more than there are, one after the other
        for round in 0..abi::FIEF_RINGS / 16 + 8 {
            let child = fork(|| {
                std::thread::scope(|scope| {
                    for _ in 0..16 {
                        scope.spawn(|| {
                            let page = open();
                            page.write(0, now_ns());
                            std::mem::forget(page);
                        });
                    }
                });
                if round % 2 == 0 {
                    nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
                }
            });
            if round % 2 == 0 { wait_until(SOON, || child.has_ended()).unwrap() } else { child.finish() }
        }
        open().close().unwrap();
    });
}
