// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whatever unprivileged processes do with containers, in whatever order: the tree stays whole and within its limits, and
//! nothing is left of it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fief::{Container, Rights};
use fief_bpf::abi;
use fief_bpf::table::{Row, Table};
use fief_control::Fief;
use fief_testkit::{Dice, wait_until};
use fief_tests_netns::{NOBODY, SOON, Setup, all_end, become_user, fork, in_unit_of, spin};

/// Does what comes to its mind; every refusal is fine.
fn wander(seed: u64, peers: &[i32], over: &UnixStream, back: &UnixStream) {
    let mut dice = Dice::new(seed);
    let mut held = vec![Container::create().unwrap()];
    let _ = back.set_nonblocking(true);
    let _ = over.set_nonblocking(true);
    for _ in 0..4000 {
        let one = dice.roll(held.len());
        let other = dice.roll(held.len());
        match dice.roll(16) {
            0 | 1 => held.extend(Container::create()),
            2 => held.extend(held[one].child()),
            3 if held.len() > 1 => drop(held.swap_remove(one)),
            4 => drop(held[one].bind_thread()),
            5 => drop(fief::unbind(&held[one])),
            6 => drop(held[one].adopt()),
            7 => {
                let _bound = held[one].bind();
                let _ = held[other].adopt();
            }
            8 | 9 => drop(held[one].set_share(dice.roll(700_000) as u32)),
            10 => held.extend(held[one].duplicate()),
            11 => held.extend(fief::open_current()),
            12 => drop(held[one].bind_other(peers[dice.roll(peers.len())])),
            13 => {
                let fds = [held[one].as_fd().as_raw_fd()];
                let message = [nix::sys::socket::ControlMessage::ScmRights(&fds)];
                let bytes = [std::io::IoSlice::new(b"f")];
                let _ = nix::sys::socket::sendmsg::<()>(
                    over.as_raw_fd(),
                    &bytes,
                    &message,
                    nix::sys::socket::MsgFlags::empty(),
                    None,
                );
            }
            14 => {
                let mut room = nix::cmsg_space!(std::os::fd::RawFd);
                let mut byte = [0];
                let mut into = [std::io::IoSliceMut::new(&mut byte)];
                let flags = nix::sys::socket::MsgFlags::MSG_CMSG_CLOEXEC;
                let received = nix::sys::socket::recvmsg::<()>(back.as_raw_fd(), &mut into, Some(&mut room), flags);
                for message in received.iter().flat_map(|message| message.cmsgs().unwrap()) {
                    if let nix::sys::socket::ControlMessageOwned::ScmRights(fds) = message {
                        for fd in fds {
                            // SAFETY: the kernel made this descriptor for the message, and nobody else took it.
                            let fd = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(fd) };
                            held.extend(Container::from_fd(fd));
                        }
                    }
                }
            }
            _ => drop(held[one].keep_rights(Rights::USE | Rights::READ | Rights::CHILDREN)),
        }
        if held.len() > 60 {
            held.truncate(20);
        }
    }
}

#[test]
fn no_wandering_breaks_the_tree() {
    let policy = "version = 1\n[container.unit]\ncpu.share = \"60%\"\ndescendants.max = 300\n";
    let setup = Setup { policy, ..Setup::default() };
    let body = || {
        let table = Table::open(Fief::from_env().unwrap().pins()).unwrap();
        let unit = {
            let probe = Container::create().unwrap();
            probe.info().unwrap().parent.unwrap()
        };
        let (over, back) = UnixStream::pair().unwrap();
        let first = fork(|| {
            become_user(NOBODY);
            loop {
                spin(Duration::from_millis(1));
            }
        });
        let peers = [first.pid(), std::process::id() as i32];
        let wanderers: Vec<_> = (1..=3)
            .map(|seed| {
                let (over, back) = (&over, &back);
                fork(move || {
                    become_user(NOBODY);
                    wander(seed, &peers, over, back);
                })
            })
            .collect();
        while !wanderers.iter().all(fief_tests_netns::Child::has_ended) {
            let descendants = table.row(unit).unwrap().record.descendants;
            assert!(descendants <= 310, "{descendants} below the unit");
            std::thread::yield_now();
        }
        wanderers.into_iter().for_each(fief_tests_netns::Child::finish);
        // held now: what is in flight, and what `first` was bound to. What a wanderer was bound to ends once its CPU has left it, after it
        // was waited for, and what `first` was bound to before ends at its next softirq: in the midst of a reading, perhaps
        let read = || table.rows().filter(|row| row.container.id >= abi::FIEF_FIRST_ID).collect::<Vec<_>>();
        let held = |row: &Row| {
            let record = &row.record;
            (row.container, record.parent, record.refs, record.reserved_ppm, record.attributes[0].share_ppm)
        };
        let mut rows = read();
        wait_until(SOON, || {
            let before = std::mem::replace(&mut rows, read());
            before.iter().map(held).eq(rows.iter().map(held))
        })
        .expect("two readings agree");
        let find = |id: u32| rows.iter().find(|row| row.container.id == id);
        for row in &rows {
            let mut at = *row;
            while at.container.id != unit {
                let parent = at.record.parent;
                at = *find(parent.id).unwrap_or_else(|| panic!("{:?} has left the unit", row.container));
                assert_eq!(at.container.generation, parent.generation);
            }
            let given: u32 = rows
                .iter()
                .filter(|child| child.record.parent == row.container && child.container.id != unit)
                .map(|child| child.record.attributes[0].share_ppm)
                .sum();
            let own = if row.container.id == unit { 600_000 } else { row.record.attributes[0].share_ppm };
            assert_eq!(given, row.record.reserved_ppm, "{:?}", row.container);
            assert!(given <= own, "{:?} has {own} and gave {given}", row.container);
        }
        drop((over, back));
        first.kill();
        all_end();
        // which an end gives back as it frees the slot
        let used = || table.row(unit).map(|row| (row.record.descendants, row.record.reserved_ppm)).unwrap();
        wait_until(SOON, || used() == (0, 0)).unwrap_or_else(|_| panic!("{:?}", used()));
    };
    in_unit_of("no_wandering_breaks_the_tree", &setup, body, |_| ());
}
